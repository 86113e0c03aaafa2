"""Hundreds of clients on a tiny model in a tiny pool: whoever is not at fault gets what he would
have got alone, and at the end nothing is left behind.

`OCTAVO_SOAK_S` is how long the clients go on; `make soak` sets ten minutes.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo_wire import metrics as names
from support.tiny_gguf import TINY, write_tiny

SOAK_S = float(os.environ.get("OCTAVO_SOAK_S", "45"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SOAK_S + 240)]

CLIENTS = 200
CONTEXT = 128
VOCABULARY = TINY["vocab_size"]
SEATS = 16
# 2 layers x 2 KV heads x 16 numbers x 4 bytes, keys and values: 512 bytes a token, 2 KiB a block.
# The pool has room for about 5 of the longest sequences while 16 seats want it.
BLOCK, POOL = 4, 160 * 2048
SERVER_OPTIONS = [
    *("--dtype", "float32", "--block-size", str(BLOCK), "--kv-cache-memory", str(POOL)),
    *("--max-model-len", str(CONTEXT), "--max-num-seqs", str(SEATS)),
    *("--max-num-batched-tokens", "96", "--max-queued-requests", "60"),
    *("--port", "0", "--served-model-name", "tiny"),
]
Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Said:
    """What an answer says, of each choice and in sum."""

    texts: tuple[str, ...]
    reasons: tuple[str, ...]
    completion_tokens: int
    prompt_tokens: int


@dataclass
class Soak:
    """What the clients saw."""

    expected: dict[str, Said] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    cached_tokens: int = 0
    wrong: list[str] = field(default_factory=list)


@contextmanager
def served(model: Path, folder: Path, name: str) -> Iterator[tuple[str, Any, Path]]:
    """`octavo serve` in a process of its own: (URL, process, its stderr)."""
    stderr = folder / f"{name}.stderr"
    command = [sys.executable, "-m", "octavo_cli.main", "serve", str(model), *SERVER_OPTIONS]
    with stderr.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        deadline = time.monotonic() + 60
        while "ready" not in (text := stderr.read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        url = next(line for line in text.splitlines() if "listening" in line).split()[3].rstrip(",")
        yield url, process, stderr
    finally:
        process.kill()
        process.wait()


def make_requests(count: int, seed: int) -> list[Body]:
    """Requests of every length and kind; a third share the start of their prompts."""
    chance = random.Random(seed)
    shared = [chance.randrange(2, VOCABULARY - 1) for _ in range(40)]
    requests = []
    for number in range(count):
        own = [chance.randrange(2, VOCABULARY - 1) for _ in range(chance.randint(1, 50))]
        prompt = shared[: chance.randint(8, 40)] + own if number % 3 == 0 else own
        body: Body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": chance.randint(1, min(64, CONTEXT - len(prompt))),
        }
        if chance.random() < 0.5:
            body["temperature"] = 0
        else:
            body |= {"temperature": 0.8, "seed": number, "top_k": chance.choice([0, 20])}
        if chance.random() < 0.4:
            body["stop"] = chance.sample([*"abcdefghij", "KL", "MNO"], 3)
        if chance.random() < 0.3:
            body["stop_token_ids"] = chance.sample(range(2, 95), 3)
        if chance.random() < 0.2:
            body["min_tokens"] = chance.randint(1, body["max_tokens"])
        if chance.random() < 0.3:
            body["ignore_eos"] = True
        if chance.random() < 0.15:
            body["n"] = chance.randint(2, 3)
        if chance.random() < 0.2:
            body |= {"presence_penalty": 0.5, "repetition_penalty": 1.1}
        requests.append(body)
    return requests


GOOD = make_requests(80, seed=7)
# What is wrong with each, by the status that it earns.
BAD: list[tuple[int, Body | str]] = [
    (400, {"model": "tiny", "prompt": [5] * CONTEXT}),
    (400, {"model": "tiny", "prompt": [5] * 100, "max_tokens": 100}),
    (400, {"model": "tiny", "prompt": [VOCABULARY + 5]}),
    (400, {"model": "tiny", "prompt": [5], "temperature": -1}),
    (400, {"model": "tiny", "prompt": [5], "max_token": 4}),
    (400, {"model": "tiny", "prompt": [[]]}),
    (400, {"model": "tiny", "prompt": [5], "stream": "perhaps"}),
    (400, '{"model": "tiny", "prompt": '),
    (404, {"model": "large", "prompt": [5]}),
]


async def ask(session: aiohttp.ClientSession, url: str, body: Body) -> tuple[int, Said | str, int]:
    """(status, what it said or the text of the refusal, cached tokens); of any of the two ways."""
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status == 429:
            assert int(response.headers["Retry-After"]) >= 1
        if response.status != 200:
            return response.status, await response.text(), 0
        if not body.get("stream"):
            answer = await response.json()
            choices = answer["choices"]
            texts = {choice["index"]: choice["text"] for choice in choices}
            reasons = {choice["index"]: choice["finish_reason"] for choice in choices}
            return 200, _said(texts, reasons, answer["usage"]), _cached(answer["usage"])
        texts, reasons, usage = {}, {}, {}
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return 599, line.decode(), 0
            for choice in event["choices"]:
                index = choice["index"]
                texts[index] = texts.get(index, "") + choice["text"]
                if choice["finish_reason"] is not None:
                    assert index not in reasons, "a choice ends once"
                    reasons[index] = choice["finish_reason"]
            usage = event.get("usage") or usage
        return 200, _said(texts, reasons, usage), _cached(usage)


def _said(texts: dict[int, str], reasons: dict[int, str], usage: Body) -> Said:
    order = sorted(reasons)
    return Said(
        texts=tuple(texts[index] for index in order),
        reasons=tuple(reasons[index] for index in order),
        completion_tokens=usage["completion_tokens"],
        prompt_tokens=usage["prompt_tokens"],
    )


def _cached(usage: Body) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


async def one_action(
    soak: Soak, session: aiohttp.ClientSession, url: str, chance: random.Random
) -> None:
    kind = chance.random()
    if kind < 0.12:
        status, body = chance.choice(BAD)
        data = body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{url}/v1/completions", data=data, headers=headers) as response:
            answer = await response.json()
            soak.seen["refused"] += 1
            if response.status != status or not answer["error"]["message"]:
                soak.wrong.append(f"{data[:80]} got {response.status} {answer}")
        return
    good = chance.choice(GOOD)
    body = dict(good)
    if chance.random() < 0.6:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if kind < 0.3:
        await leave(soak, session, url, body, chance)
        return
    status, said, cached = await ask(session, url, body)
    if status == 429:
        soak.seen["asked to wait"] += 1
        await asyncio.sleep(chance.uniform(0.05, 0.3))
        return
    soak.seen["answered"] += 1
    soak.cached_tokens += cached
    if said != soak.expected[json.dumps(good)]:
        soak.wrong.append(f"{body} got {status} {said}, not {soak.expected[json.dumps(good)]}")


async def leave(
    soak: Soak, session: aiohttp.ClientSession, url: str, body: Body, chance: random.Random
) -> None:
    """Close the connection at any moment: before the head, in the middle, or just at the end."""

    async def begin() -> None:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            for _ in range(chance.randint(0, 20)):
                if not await response.content.readline():
                    break
            response.close()

    try:
        await asyncio.wait_for(begin(), chance.choice([0.01, 0.1, 1.0, 5.0]))
    except TimeoutError:
        soak.seen["left early"] += 1
    else:
        soak.seen["left"] += 1


async def run_clients(soak: Soak, url: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds

    async def client(number: int, session: aiohttp.ClientSession) -> None:
        chance = random.Random(number)
        while loop.time() < until_s and len(soak.wrong) < 5:
            await one_action(soak, session, url, chance)

    # Connections are not reused: a client that leaves would close one under another's request.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        for number in range(CLIENTS):
            group.create_task(client(number, session))


async def answer_alone(soak: Soak, url: str) -> None:
    """Each request by itself, on an engine that has nothing else to do."""
    async with aiohttp.ClientSession() as session:
        for body in GOOD:
            status, said, _ = await ask(session, url, body)
            assert isinstance(said, Said), (status, said, body)
            soak.expected[json.dumps(body)] = said


async def wait_until_idle(url: str) -> dict[str, float]:
    """The metrics once nothing runs, waits or holds a block."""
    gauges = (names.NUM_REQUESTS_RUNNING, names.NUM_REQUESTS_WAITING, names.KV_CACHE_USAGE)
    deadline = time.monotonic() + 20
    async with aiohttp.ClientSession() as session:
        while True:
            found = await metrics_of(session, url)
            if all(found[name] == 0 for name in gauges):
                return found
            assert time.monotonic() < deadline, {name: found[name] for name in gauges}
            await asyncio.sleep(0.2)


async def metrics_of(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Each sample, also by its reason where it has one."""
    async with session.get(f"{url}/metrics") as response:
        page = await response.text()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] += sample.value
            if "finished_reason" in sample.labels:
                found[f"ended by {sample.labels['finished_reason']}"] += sample.value
    return dict(found)


def test_soak(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", readable=True).path
    soak = Soak()
    with served(model, tmp_path, "alone") as (url, _, _):
        asyncio.run(answer_alone(soak, url))
    assert len({said.reasons for said in soak.expected.values()}) > 1, "stops and lengths"
    with served(model, tmp_path, "soaked") as (url, process, stderr):
        asyncio.run(run_clients(soak, url, SOAK_S))
        assert soak.wrong == []
        found = asyncio.run(wait_until_idle(url))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = stderr.read_text()
    print(dict(soak.seen), {k: v for k, v in found.items() if "ended" in k or "_total" in k})
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said
    # That the load was one: each of these happened.
    kinds = ("answered", "refused", "left", "left early", "asked to wait")
    assert min(soak.seen[kind] for kind in kinds) > 0
    assert soak.cached_tokens > 0
    assert found[names.NUM_PREEMPTIONS] > 0
    assert found["ended by abort"] > 0
    assert found["ended by stop"] > 0
    assert found["ended by length"] > 0
    assert found["ended by error"] == 0
