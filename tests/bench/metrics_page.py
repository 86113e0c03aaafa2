"""How long /metrics and /internal/state take while 256 requests run and steps go on.

    python tests/bench/metrics_page.py [--running 256] [--scrapes 200] [--step-ms 10]

The whole server runs in processes of its own; its runner takes `--step-ms` for a step and works
on nothing meanwhile, as one that waits for a GPU. The time is that of a client on the same machine,
from the request to the page's end. Lower is better.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

SERVER = Path(__file__).with_name("serving.py")
PAGES = ("/metrics", "/internal/state")
STEP_PAUSE_MS = 10.0  # about a step of a real model with 256 sequences on a GPU


def percentile(times_ms: Sequence[float], share: float) -> float:
    ordered = sorted(times_ms)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


async def scrape(url: str, running: int, scrapes: int) -> dict[str, dict[str, float]]:
    """Figures by page, while `running` requests run."""
    # A whole answer, not a stream: events would load the loop and be measured in their place.
    body = {
        "model": "tiny",
        "prompt": [97] * 16,
        "max_tokens": 16000,
        "ignore_eos": True,
    }
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:

        async def request() -> None:
            async with session.post("/v1/completions", json=body) as response:
                await response.read()

        async def count() -> float:
            async with session.get("/metrics") as response:
                lines = (await response.text()).splitlines()
            (line,) = [x for x in lines if x.startswith("vllm:num_requests_running{")]
            return float(line.split()[-1])

        tasks = [asyncio.create_task(request()) for _ in range(running)]
        try:
            deadline = time.monotonic() + 60
            while await count() < running:
                assert time.monotonic() < deadline, "they did not all get a seat"
                await asyncio.sleep(0.05)
            figures = {}
            for page in PAGES:
                async with session.get(page) as response:
                    if response.status == 404:
                        print(f"{page} is not served", file=sys.stderr)
                        continue
                times_ms = [await one(session, page) for _ in range(scrapes)]
                figures[page] = {
                    "median_ms": statistics.median(times_ms),
                    "p99_ms": percentile(times_ms, 0.99),
                    "max_ms": max(times_ms),
                }
            assert await count() == running, "they ran all the while"
            return figures
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def one(session: aiohttp.ClientSession, page: str) -> float:
    start_s = time.perf_counter()
    async with session.get(page) as response:
        await response.read()
        assert response.status == 200, page
    took_ms = (time.perf_counter() - start_s) * 1e3
    await asyncio.sleep(0.01)
    return took_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=STEP_PAUSE_MS, help="0: without a pause")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    command = [sys.executable, str(SERVER), "--run-server", "--step-ms", str(args.step_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[2].rstrip(",")
        while "ready" not in (line := process.stdout.readline()):
            assert line, "the server ended"
        figures = asyncio.run(scrape(url, args.running, args.scrapes))
    finally:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    if args.json:
        print(json.dumps({"running": args.running, "cpus": os.cpu_count(), **figures}))
        return
    for page, found in figures.items():
        print(
            f"{page} at {args.running} running requests, a step each {args.step_ms:g} ms: median "
            f"{found['median_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms, slowest "
            f"{found['max_ms']:.2f} ms"
        )


if __name__ == "__main__":
    main()
