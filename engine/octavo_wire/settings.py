"""The engine's settings: one dataclass makes the flags, the environment and the documentation.

A value is taken from its flag, else from `OCTAVO_<NAME>` in the environment, else from its default.
The operator renders flags with `render_args`, and the engine reads them with `parse_settings`, so
the two cannot disagree on a name or a unit.
"""

import argparse
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NoReturn

ENV_PREFIX: Final = "OCTAVO_"
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
DEVICES: Final = ("auto", "cpu", "cuda")
MAX_TOKENS_POLICIES: Final = ("reject", "clamp")
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS: Final = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class SettingError(ValueError):
    """A setting has a value that the engine cannot work with; the message says which and why."""


def parse_bytes(text: str) -> int:
    """Bytes from a number with an optional unit: '512Mi', '2G', '1.5Gi', '1048576'."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*?)[bB]?\s*", text)
    scale = ({**_UNITS, **_BINARY_UNITS}).get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise SettingError(f"{text!r} is no size: write bytes, or a number with Mi, Gi, M or G")
    return int(float(match[1]) * scale)


def parse_max_model_len(text: str) -> int | None:
    """Tokens, or None for 'auto': the longest that the model and the memory allow."""
    return None if text.strip().lower() == "auto" else _positive_int(text)


def _positive_int(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise SettingError(f"{text!r} is no whole number of 1 or more")
    return number


def _whole_int(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise SettingError(f"{text!r} is no whole number of 0 or more")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < math.inf:
        raise SettingError(f"{text!r} is no number of seconds of 0 or more")
    return number


def _positive_seconds(text: str) -> float:
    number = _seconds(text)
    if number == 0:
        raise SettingError(f"{text!r} leaves no time; give more than 0 seconds, or no limit at all")
    return number


def _port(text: str) -> int:
    number = int(text) if text.strip().isdigit() else -1
    if not 0 <= number <= 65535:
        raise SettingError(f"{text!r} is no port: 0 to 65535 (0 takes a free one)")
    return number


def _ratio(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number <= 1.0:
        raise SettingError(f"{text!r} is no share of memory: more than 0, at most 1")
    return number


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise SettingError(f"{text!r} is neither true nor false")


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise SettingError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return parse


def _setting(default: Any, parse: Callable[[str], Any], text: str, metavar: str = "") -> Any:
    return field(default=default, metadata={"parse": parse, "help": text, "metavar": metavar})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything that shapes one engine process. Parsed once, never mutated."""

    model: str = field(
        metadata={"help": "a path to a GGUF file, file://…, or package://MODULE/FILE"}
    )
    host: str = _setting("127.0.0.1", str, "address to listen on", "ADDRESS")
    port: int = _setting(8000, _port, "port to listen on; 0 takes a free one", "PORT")
    served_model_name: str | None = _setting(
        None, str, "name that requests put into `model`; default: the model file's name", "NAME"
    )
    dtype: str = _setting(
        "auto", _choice(*DTYPES), "numbers to compute in; auto: float32 on CPUs, bfloat16 on GPUs"
    )
    device: str = _setting("auto", _choice(*DEVICES), "auto takes CUDA where torch sees it")
    max_model_len: int | None = _setting(
        None,
        parse_max_model_len,
        "longest sequence in tokens, prompt and output together; auto: the longest that fits",
        "TOKENS",
    )
    max_num_seqs: int = _setting(256, _positive_int, "most sequences in one step", "N")
    max_num_batched_tokens: int = _setting(2048, _positive_int, "most tokens in one step", "TOKENS")
    block_size: int = _setting(16, _positive_int, "tokens in one block of the KV cache", "TOKENS")
    gpu_memory_utilization: float = _setting(
        0.92,
        _ratio,
        "share of the device's (or container's) memory that the engine may use",
        "RATIO",
    )
    kv_cache_memory: int | None = _setting(
        None, parse_bytes, "size of the KV cache, as 512Mi; default: what the share leaves", "BYTES"
    )
    prefix_caching: bool = _setting(True, _boolean, "reuse the KV blocks of equal prompt prefixes")
    max_queued_requests: int = _setting(
        1024,
        _whole_int,
        "requests that may wait for a seat; one more is answered 429 with Retry-After",
        "N",
    )
    max_queued_tokens: int = _setting(
        2**20, _positive_int, "prompt tokens that may wait, over all requests; then 429", "TOKENS"
    )
    priority_wait_seconds: float = _setting(
        60.0,
        _seconds,
        "longest time that requests of a more urgent `priority` go before a request; "
        "0: all in the order of their arrival, and a `priority` is answered 400",
        "SECONDS",
    )
    max_tokens_policy: Literal["reject", "clamp"] = _setting(
        "reject",
        _choice(*MAX_TOKENS_POLICIES),
        "what becomes of a max_tokens beyond the context: reject answers 400, clamp cuts it",
    )
    request_timeout_seconds: float | None = _setting(
        None,
        _positive_seconds,
        "longest time from a request's arrival to its last token; default: no limit",
        "SECONDS",
    )
    api_key_file: str | None = _setting(
        None, str, "file with one API key a line; requests under /v1 must bear one", "FILE"
    )
    metrics_need_key: bool = _setting(
        False, _boolean, "ask for an API key on /metrics too, where keys are set"
    )
    drain_accept_seconds: float = _setting(
        5.0,
        _seconds,
        "after SIGTERM: time in which requests are still taken, until endpoints have spread",
        "SECONDS",
    )
    drain_seconds: float = _setting(
        25.0,
        _seconds,
        "after SIGTERM: time until running answers are cut off; keep it below the pod's grace",
        "SECONDS",
    )
    single_process: bool = _setting(
        False, _boolean, "run the model in the server's own process instead of a second one"
    )
    access_log: bool = _setting(
        False, _boolean, "write one line per request to stderr: what was asked, status, time"
    )
    step_log: str | None = _setting(
        None, str, "append one JSON line per engine step to this file (- for stderr)", "FILE"
    )


def env_name(setting: str) -> str:
    return ENV_PREFIX + setting.upper()


def flag_name(setting: str) -> str:
    return "--" + setting.replace("_", "-")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingError(message)


def make_parser(
    prog: str = "octavo serve", description: str = "", *, hidden: Collection[str] = ()
) -> argparse.ArgumentParser:
    """A parser with one flag per setting; it raises SettingError and leaves unset flags out.

    `hidden` settings are read as well, but not shown: for a command that refuses them by name.
    """
    parser = _Parser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    _add_setting_flags(parser, hidden)
    return parser


def _add_setting_flags(parser: argparse.ArgumentParser, hidden: Collection[str]) -> None:
    for setting in fields(EngineSettings):
        text = str(setting.metadata["help"])
        if setting.name == "model":
            parser.add_argument("model", metavar="MODEL", help=text)
            continue
        shown = (
            "auto"
            if setting.default is None and setting.name == "max_model_len"
            else setting.default
        )
        if shown is not None:
            text += f" (default: {str(shown).lower() if isinstance(shown, bool) else shown})"
        text = f"{text} [{env_name(setting.name)}]".replace("%", "%%")
        if setting.name in hidden:
            text = argparse.SUPPRESS
        if isinstance(setting.default, bool):
            parser.add_argument(
                flag_name(setting.name),
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=text,
            )
        else:
            parser.add_argument(
                flag_name(setting.name),
                metavar=setting.metadata["metavar"] or None,
                default=argparse.SUPPRESS,
                help=text,
            )


def settings_from(values: Mapping[str, Any], env: Mapping[str, str]) -> EngineSettings:
    """Settings from parsed flags (strings; booleans as such) and the environment.

    Raises SettingError, naming the flag or the variable that is wrong.
    """
    chosen: dict[str, Any] = {}
    for setting in fields(EngineSettings):
        source, raw = flag_name(setting.name), values.get(setting.name)
        if raw is None and setting.name != "model" and env.get(env_name(setting.name)):
            source, raw = env_name(setting.name), env[env_name(setting.name)]
        if raw is None:
            if setting.name == "model":
                raise SettingError("a model is required: octavo serve MODEL")
            continue
        parse = setting.metadata.get("parse", str)
        try:
            chosen[setting.name] = raw if isinstance(raw, bool) else parse(raw)
        except SettingError as error:
            raise SettingError(f"{source}: {error}") from None
    settings = EngineSettings(**chosen)
    _check(settings)
    return settings


def parse_settings(argv: Sequence[str], env: Mapping[str, str]) -> EngineSettings:
    """Settings of `octavo serve` from its arguments and environment; raises SettingError."""
    return settings_from(vars(make_parser().parse_args(argv)), env)


def render_args(settings: Mapping[str, Any]) -> list[str]:
    """Arguments that `parse_settings` reads back to the same values; None means: leave it out."""
    args = [str(settings["model"])]
    for setting in fields(EngineSettings):
        value = settings.get(setting.name)
        if setting.name == "model" or value is None:
            continue
        if isinstance(value, bool):
            args.append(flag_name(setting.name) if value else "--no-" + flag_name(setting.name)[2:])
        else:
            args.append(f"{flag_name(setting.name)}={value}")
    return args


def _check(settings: EngineSettings) -> None:
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        raise SettingError(
            f"--max-num-batched-tokens {settings.max_num_batched_tokens} is less than "
            f"--max-num-seqs {settings.max_num_seqs}: each running sequence needs a token a step; "
            "raise the first or lower the second"
        )
    if settings.drain_accept_seconds > settings.drain_seconds:
        raise SettingError(
            f"--drain-accept-seconds {settings.drain_accept_seconds:g} is more than "
            f"--drain-seconds {settings.drain_seconds:g}: both count from SIGTERM, and requests "
            "that are still taken need time to finish; lower the first or raise the second"
        )
