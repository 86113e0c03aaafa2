"""Tokens a second that the server can stream when the model takes no time.

    python tests/bench/serving.py [--connections 64] [--tokens 2000] [--single-process] [--profile]

The whole server runs, in processes of its own: HTTP, scheduler, detokenizer, events, and a runner
that answers at once. The client reads raw sockets and counts frames, so that it costs little; all
of them share the machine's cores. The tokens are those of the server's own usage. More is better.
"""

import argparse
import asyncio
import cProfile
import json
import os
import platform
import pstats
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_engine import core_main
from octavo_engine.config import CacheShape, ModelDescription
from octavo_engine.core.messages import PendingStep, SchedulerOutput
from octavo_engine.core.scheduler import Scheduler, SchedulerConfig
from octavo_engine.serving.core_process import launch_process
from octavo_engine.serving.core_thread import launch_in_thread
from octavo_engine.serving.launch import Progress
from octavo_engine.serving.server import EngineServer
from octavo_engine.testing import InstantRunner
from octavo_wire.settings import EngineSettings

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.serving import MODEL, make_tokenizer_spec

SCRIPT = list(b" the quick brown fox jumps over the lazy dog;")
PROMPT = [ord("a")] * 16
ENV_STEP_MS = "BENCH_STEP_MS"  # from the server's process to the core's
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class InstantEngine:
    scheduler: Scheduler
    runner: InstantRunner
    description: ModelDescription


class PacedRunner(InstantRunner):
    """Takes a while for a step, and no processor: as a runner that waits for a GPU."""

    def __init__(self, script: Sequence[int], step_s: float) -> None:
        super().__init__(script)
        self._step_s = step_s

    def dispatch(self, scheduled: SchedulerOutput) -> PendingStep:
        time.sleep(self._step_s)
        return super().dispatch(scheduled)


def load(_settings: EngineSettings, _progress: Progress) -> InstantEngine:
    step_s = float(os.environ.get(ENV_STEP_MS, "0")) / 1e3
    spec = make_tokenizer_spec()
    cache = CacheShape(num_blocks=100_000, block_size=16, bytes_per_block=1)
    return InstantEngine(
        scheduler=Scheduler(
            SchedulerConfig(
                num_blocks=cache.num_blocks,
                block_size=cache.block_size,
                max_num_seqs=256,
                max_num_batched_tokens=2048,
                max_model_len=16384,
            )
        ),
        runner=PacedRunner(SCRIPT, step_s) if step_s else InstantRunner(SCRIPT),
        description=ModelDescription(
            name=MODEL,
            vocab_size=len(spec.tokens),
            max_model_len=16384,
            tokenizer=spec,
            cache=cache,
        ),
    )


def run_server(single_process: bool, profile: Path | None) -> int:
    """The server's process: says its address on stdout; SIGTERM ends it."""
    settings = EngineSettings(model="instant.gguf", port=0, drain_accept_seconds=0.0)
    launch = (
        launch_in_thread(lambda progress: load(settings, progress))
        if single_process
        else launch_process(settings, [sys.executable, __file__, "--run-core"])
    )
    server = EngineServer(
        settings, launch, model_name=MODEL, announce=lambda line: print(line, flush=True)
    )
    if profile is None:
        return asyncio.run(server.run())
    # By processor time: by the clock, whatever call the kernel interrupts would look slow.
    profiler = cProfile.Profile(time.thread_time)
    status = profiler.runcall(asyncio.run, server.run())
    profiler.dump_stats(profile)
    return int(status)


class Reader(asyncio.Protocol):
    """One connection: sends a request and counts the frames of its answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self.frames = 0
        self.first_s: float | None = None
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.first_s is None and b"data: " in data:
            self.first_s = time.perf_counter()
        # A mark that is cut in two between pieces is whole in the tail and the next piece.
        joined = self._tail[-5:] + data
        self.frames += joined.count(b"data: ")
        self._tail = (self._tail + data)[-2000:]
        if b"data: [DONE]" in self._tail[-200:] and not self.done.done():
            self.done.set_result(self._tail)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"cut off: {exc} {self._tail[-300:]!r}"))


@dataclass(frozen=True, kw_only=True)
class Round:
    tokens: int
    frames: int
    wall_s: float
    cpu_s: dict[str, float]
    kernel_s: float  # of the server's

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s


async def measure(
    host: str, port: int, connections: int, tokens: int, pids: dict[str, int]
) -> Round:
    body = json.dumps(
        {
            "model": MODEL,
            "prompt": PROMPT,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    loop = asyncio.get_running_loop()
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    kernel_s = cpu_s(pids["server"], kernel_only=True)
    start_s = time.perf_counter()
    opened = [
        await loop.create_connection(lambda: Reader(request), host, port)
        for _ in range(connections)
    ]
    tails = await asyncio.gather(*(reader.done for _, reader in opened))
    wall_s = time.perf_counter() - start_s
    used = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
    kernel_s = cpu_s(pids["server"], kernel_only=True) - kernel_s
    for transport, _ in opened:
        transport.close()
    counted = [int(re.findall(rb'"completion_tokens":(\d+)', tail)[-1]) for tail in tails]
    assert counted == [tokens] * connections, "every stream is whole"
    frames = sum(reader.frames for _, reader in opened)
    return Round(tokens=sum(counted), frames=frames, wall_s=wall_s, cpu_s=used, kernel_s=kernel_s)


def cpu_s(pid: int, *, kernel_only: bool = False) -> float:
    """Processor time of a process so far, in its own code and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[12]) + (0 if kernel_only else int(fields[11]))) / TICKS_PER_S


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def run_bench(args: argparse.Namespace) -> None:
    command = [sys.executable, __file__, "--run-server"]
    command += ["--step-ms", str(args.step_ms)]
    command += ["--single-process"] * args.single_process
    profile = Path(f"serving-{os.getpid()}.prof").absolute()
    command += ["--profile-to", str(profile)] * args.profile
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        host, _, port = process.stdout.readline().split()[2].rstrip(",")[7:].rpartition(":")
        while "ready" not in (line := process.stdout.readline()):
            assert line, "the server ended"
        pids = {"server": process.pid, "client": os.getpid()}
        if not args.single_process:
            (pids["core"],) = children(process.pid)
        rounds = [
            asyncio.run(measure(host, int(port), args.connections, args.tokens, pids))
            for _ in range(args.rounds + 1)
        ][1:]  # the first warms up
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    report(args, rounds)
    if args.profile:
        print("\nThe server's event loop, by own time (profiling slows it down):")
        pstats.Stats(str(profile)).sort_stats("tottime").print_stats(18)
        profile.unlink()


def report(args: argparse.Namespace, rounds: Sequence[Round]) -> None:
    rates = [each.tokens_per_s for each in rounds]
    wall_s = sum(each.wall_s for each in rounds)
    cores = {
        name: sum(each.cpu_s[name] for each in rounds) / wall_s for name in sorted(rounds[0].cpu_s)
    }
    figures = {
        "connections": args.connections,
        "tokens_each": args.tokens,
        "rounds": args.rounds,
        "processes": 1 if args.single_process else 2,
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "median_tokens_per_s": statistics.median(rates),
        "lowest_tokens_per_s": min(rates),
        "highest_tokens_per_s": max(rates),
        "tokens_per_frame": sum(r.tokens for r in rounds) / sum(r.frames for r in rounds),
        "cores_used": cores,
        "server_us_per_token": cores["server"] * wall_s / sum(r.tokens for r in rounds) * 1e6,
        "server_kernel_share": sum(r.kernel_s for r in rounds)
        / sum(r.cpu_s["server"] for r in rounds),
    }
    if args.json:
        print(json.dumps(figures))
        return
    busy = ", ".join(f"{name} {value:.2f}" for name, value in cores.items())
    print(
        f"{args.connections} connections, {args.tokens} tokens each, {figures['processes']} "
        f"process(es) on {figures['cpus']} cores: median {figures['median_tokens_per_s']:,.0f} "
        f"tokens/s ({min(rates):,.0f} to {max(rates):,.0f} in {len(rates)} rounds), "
        f"{figures['tokens_per_frame']:.2f} tokens a frame; cores busy: {busy}; "
        f"{figures['server_us_per_token']:.0f} µs of the server's CPU a token, "
        f"{figures['server_kernel_share']:.0%} of it in the kernel"
    )


def main() -> int:
    if sys.argv[1:2] == ["--run-core"]:
        return core_main.main(sys.argv[2:], load)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2000, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--single-process", action="store_true")
    parser.add_argument("--profile", action="store_true", help="tell what the event loop does")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run-server", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--step-ms", type=float, default=0.0, help="time that a step takes")
    parser.add_argument("--profile-to", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run_server:
        os.environ[ENV_STEP_MS] = str(args.step_ms)
        return run_server(args.single_process, args.profile_to)
    run_bench(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
