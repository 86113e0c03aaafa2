"""The commands against servers: prepare, warm up, load, sum up."""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Final

from octavo_bench.client import Server, open_session
from octavo_bench.comparison import compare
from octavo_bench.errors import BenchError
from octavo_bench.figures import Summary, summarize
from octavo_bench.load import Progress, run_closed, run_open
from octavo_bench.options import make_jobs, make_shape, read_api_key
from octavo_bench.prompts import Calibration, make_prompts
from octavo_bench.records import Record
from octavo_bench.report import comparison_table, summary_table
from octavo_bench.workload import Job, make_closed_jobs

_REFRESH_S: Final = 0.25
_WARM_UP_SEED: Final = 1_000_003
Work = list[tuple[Job, str]]


async def bench_server(options: argparse.Namespace) -> tuple[dict[str, Any], str, bool]:
    """The report, its table, and whether any request went well. Raises BenchError."""
    async with open_session(read_api_key(options.api_key_file)) as session:
        server = Server(session, options.url, shape=make_shape(options), model=options.model)
        facts = await server.prepare()
        work = make_work(options, server.calibration, seed=options.seed)
        await _warm_up(server, options, server.calibration)
        records = await _run(server, options, work, "")
    summary = summarize(records)
    report = {"server": asdict(facts), "summary": summary.to_json(), "errors": _errors(records)}
    return report, _with_errors(summary_table(summary), records), summary.succeeded > 0


async def bench_pair(options: argparse.Namespace) -> tuple[dict[str, Any], str, bool]:
    """A, B, A, B … with the same requests in the two halves of a round. Raises BenchError."""
    shape = make_shape(options)
    key_a = read_api_key(options.api_key_file)
    key_b = read_api_key(options.api_key_file_b) if options.api_key_file_b else key_a
    async with open_session(key_a) as session_a, open_session(key_b) as session_b:
        servers = {
            "A": Server(session_a, options.url_a, shape=shape, model=options.model),
            "B": Server(
                session_b, options.url_b, shape=shape, model=options.model_b or options.model
            ),
        }
        facts = {name: await server.prepare() for name, server in servers.items()}
        _check_comparable(facts["A"].ignores_eos, facts["B"].ignores_eos)
        # Both get the same texts, so the lengths are those of A's tokenizer.
        calibration = servers["A"].calibration
        for server in servers.values():
            await _warm_up(server, options, calibration)
        rounds: dict[str, list[Summary]] = {"A": [], "B": []}
        records: list[Record] = []
        for number in range(options.rounds):
            # New words each round: a prefix cache must not know them from the last one.
            work = make_work(options, calibration, seed=options.seed + number)
            for name, server in servers.items():
                label = f"round {number + 1}/{options.rounds} {name} "
                done = await _run(server, options, work, label)
                rounds[name].append(summarize(done))
                records += done
    rows = compare(rounds["A"], rounds["B"])
    report = {
        "servers": {name: asdict(fact) for name, fact in facts.items()},
        "rounds": {name: [s.to_json() for s in runs] for name, runs in rounds.items()},
        "comparison": [row.to_json() for row in rows],
        "errors": _errors(records),
    }
    failed = {name: sum(s.requests - s.succeeded for s in runs) for name, runs in rounds.items()}
    table = comparison_table(rows) if rows else "nothing to compare: every request failed"
    if any(failed.values()):
        table += f"\nfailed requests: A {failed['A']}, B {failed['B']}"
    return report, _with_errors(table, records), bool(rows)


def make_work(options: argparse.Namespace, calibration: Calibration, *, seed: int) -> Work:
    jobs = make_jobs(options, seed=seed)
    prompts = make_prompts(
        [job.prompt_tokens for job in jobs],
        calibration,
        shared_prefix_tokens=options.shared_prefix_tokens,
        seed=seed,
    )
    return list(zip(jobs, prompts, strict=True))


def _check_comparable(a_ignores_eos: bool, b_ignores_eos: bool) -> None:
    if a_ignores_eos != b_ignores_eos:
        refuses = "B" if a_ignores_eos else "A"
        raise BenchError(
            f"{refuses} refuses ignore_eos, so the answers would differ in length: compare with "
            "--no-ignore-eos"
        )


async def _warm_up(server: Server, options: argparse.Namespace, calibration: Calibration) -> None:
    """Requests whose figures nobody sees. They share the prefix with the run, and nothing else."""
    if not options.warmup:
        return
    seed = options.seed + _WARM_UP_SEED
    wanted = make_work(options, calibration, seed=seed)[: options.warmup]
    jobs = [
        Job(due_s=None, prompt_tokens=job.prompt_tokens, output_tokens=job.output_tokens)
        for job, _ in wanted
    ] or make_closed_jobs(1, options.prompt_tokens, options.output_tokens, seed=seed)
    work = list(zip(jobs, (prompt for _, prompt in wanted), strict=True))
    concurrency = options.concurrency or 1
    await run_closed(server.send, work, concurrency=concurrency, progress=Progress(len(work)))


async def _run(server: Server, options: argparse.Namespace, work: Work, label: str) -> list[Record]:
    progress = Progress(len(work))
    async with _shown(progress, label):
        if options.concurrency is not None:
            return await run_closed(
                server.send, work, concurrency=options.concurrency, progress=progress
            )
        return await run_open(server.send, work, progress=progress, clock=time.perf_counter)


@contextlib.asynccontextmanager
async def _shown(progress: Progress, label: str) -> AsyncIterator[None]:
    """A line on the terminal that tells how far the run is; none where there is no terminal."""
    if not sys.stderr.isatty():
        yield
        return

    async def show() -> None:
        while True:
            sys.stderr.write(f"\r{progress_line(progress, label)}\x1b[K")
            sys.stderr.flush()
            await asyncio.sleep(_REFRESH_S)

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def progress_line(progress: Progress, label: str) -> str:
    failed = f", {progress.failed} failed" if progress.failed else ""
    under_way = progress.sent - progress.done
    return f"{label}{progress.done}/{progress.total} answered, {under_way} under way{failed}"


def _errors(records: list[Record]) -> dict[str, str]:
    """One example of the server's words for each kind of failure."""
    return {r.failure: r.detail for r in reversed(records) if r.failure is not None}


def _with_errors(table: str, records: list[Record]) -> str:
    return "\n".join([table, *(f"{kind}: {words}" for kind, words in _errors(records).items())])
