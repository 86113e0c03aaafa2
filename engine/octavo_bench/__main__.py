"""`octavo bench`: choose the command, print the report, say by the exit status whether it ran."""

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from octavo_bench.errors import BenchError
from octavo_bench.options import parse_options
from octavo_bench.report import describe_run


def main(argv: Sequence[str]) -> int:
    """0: it ran. 1: no request was answered. 2: it could not start."""
    try:
        options = parse_options(argv)
        if options.command == "offline":
            # Imported here and now: it needs the engine, the others need no more than a network.
            from octavo_bench.offline import bench_offline

            report, table, went_well = bench_offline(options)
        else:
            from octavo_bench.runs import bench_pair, bench_server

            bench = bench_server if options.command == "serve" else bench_pair
            report, table, went_well = asyncio.run(bench(options))
        whole = {"kind": options.command, **describe_run(argv), **report}
        if options.out is not None:
            _write(options.out, whole)
    except BenchError as error:
        sys.stderr.write(f"octavo: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    sys.stdout.write((json.dumps(whole, indent=2) if options.output == "json" else table) + "\n")
    return 0 if went_well else 1


def _write(path: Any, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchError(f"The report cannot be written to {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
