"""Real processes: their output, their ends, and what happens to their children."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo_local.node.guardian import Guardian
from octavo_local.node.logs import LogFile, stamp, strip_stamp
from octavo_local.node.process import ContainerProcess
from octavo_local.node.sessions import Family, members_of, memory_bytes_of
from support.local_up import is_running


@pytest.fixture
def guardian() -> Iterator[Guardian]:
    started = Guardian.start()
    yield started
    started.close()


async def start(
    tmp_path: Path, guardian: Guardian, *words: str
) -> tuple[ContainerProcess, LogFile]:
    log = LogFile(tmp_path / "log")
    env = {"PATH": os.environ["PATH"], "A": "b"}
    process = await ContainerProcess.start(words, env=env, cwd=tmp_path, log=log, guardian=guardian)
    return process, log


async def test_output_is_logged_with_times_and_the_exit_status_is_told(
    tmp_path: Path, guardian: Guardian
) -> None:
    process, log = await start(tmp_path, guardian, "sh", "-c", "echo $A; echo two >&2; exit 3")
    end = await process.wait()
    assert (end.code, end.signal) == (3, 0)
    assert [strip_stamp(line) for line in log.lines()] == [b"b", b"two"]
    assert log.tail(1, 100) == "two"


async def test_a_command_that_does_not_exist_ends_with_127(
    tmp_path: Path, guardian: Guardian
) -> None:
    process, log = await start(tmp_path, guardian, "no-such-command")
    assert (await process.wait()).code == 127
    assert "no-such-command" in log.tail(1, 200)


async def test_the_children_of_a_container_end_with_it(tmp_path: Path, guardian: Guardian) -> None:
    process, log = await start(tmp_path, guardian, "sh", "-c", "sleep 60 & echo $!; wait")
    async for line in log.follow(tail=None, since=None, follow=True):
        child = int(strip_stamp(line))
        break
    assert child in members_of(process.family)
    assert memory_bytes_of(members_of(process.family)) > 0
    os.kill(process.pid, signal.SIGKILL)
    end = await process.wait()
    assert (end.code, end.signal) == (137, 9)
    assert members_of(process.family) == []


async def test_a_child_with_a_session_of_its_own_ends_with_its_container_too(
    tmp_path: Path, guardian: Guardian
) -> None:
    script = "setsid sleep 60 & echo $!; exit 1"
    process, log = await start(tmp_path, guardian, "bash", "-c", script)
    async with asyncio.timeout(30):  # the output is held by that child for a minute
        assert (await process.wait()).code == 1
    assert not is_running(int(log.tail(1, 20)))


async def test_an_end_is_told_although_somebody_escaped_with_the_output(
    tmp_path: Path, guardian: Guardian
) -> None:
    # The container ends only when that child has dropped its environment and its session.
    script = (
        "env -i setsid sleep 60 & echo $!; until grep -q sleep /proc/$!/comm; do :; done; exit 1"
    )
    process, log = await start(tmp_path, guardian, "bash", "-c", script)
    async with asyncio.timeout(30):
        assert (await process.wait()).code == 1
    os.kill(int(log.tail(1, 20)), signal.SIGKILL)


async def test_what_cannot_be_started_is_an_error_of_the_system(
    tmp_path: Path, guardian: Guardian
) -> None:
    for words in (["x" * 3_000_000], ["a\0b"]):
        with pytest.raises(OSError, match=r"Argument list too long|null byte"):
            await start(tmp_path, guardian, *words)


def test_a_killed_parent_leaves_neither_container_nor_grandchildren(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from octavo_local.node.guardian import Guardian
from octavo_local.node.logs import LogFile
from octavo_local.node.process import ContainerProcess
async def main():
    process = await ContainerProcess.start(
        ["bash", "-c", "setsid sleep 60 & sleep 60"], env={"PATH": os.environ["PATH"]},
        cwd=Path("."), log=LogFile(Path("log")), guardian=Guardian.start())
    print(process.family.session_id, process.family.mark, flush=True)
    await process.wait()
asyncio.run(main())
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    session_id, mark = parent.stdout.readline().split()
    family = Family(int(session_id), mark)
    wait_until(lambda: len(sleepers(family)) == 2)
    assert len(set(map(os.getsid, sleepers(family)))) == 2
    parent.kill()
    parent.wait()
    wait_until(lambda: not members_of(family))
    parent.stdout.close()


def sleepers(family: Family) -> list[int]:
    def is_sleep(pid: int) -> bool:
        return Path("/proc", str(pid), "comm").read_text() == "sleep\n"

    return [pid for pid in members_of(family) if is_sleep(pid)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_log_is_followed_to_its_end_from_where_one_asks(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    for second in range(4):
        log.write(f"line {second}".encode(), 1000.0 + second)

    async def read(tail: int | None = None, since: float | None = None) -> list[bytes]:
        found = log.follow(tail=tail, since=since, follow=False)
        return [strip_stamp(line) async for line in found]

    assert await read(tail=1) == [b"line 3"]
    assert await read(tail=0) == []
    assert len(await read(tail=99)) == len(await read()) == 4
    assert await read(tail=3, since=1002.0) == [b"line 2", b"line 3"]
    assert log.lines()[0].startswith(stamp(1000.0))

    followed = log.follow(tail=1, since=None, follow=True)
    assert strip_stamp(await anext(followed)) == b"line 3"
    log.write(b"more", 1010.0)
    log.close()
    assert [strip_stamp(line) async for line in followed] == [b"more"]


async def test_a_large_log_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_local.node.logs._PIECE_BYTES", 7)
    log = LogFile(tmp_path / "log")
    for number in range(9):
        log.write(f"line {number}".encode(), 1000.0)
    log.close()
    whole = [line async for line in log.follow(tail=None, since=None, follow=False)]
    assert [strip_stamp(line)[-1:] for line in whole] == [b"%d" % number for number in range(9)]
    for tail in range(11):
        last = [line async for line in log.follow(tail=tail, since=None, follow=False)]
        assert last == (whole[-tail:] if tail else [])
    assert log.tail(2, 100) == "line 7\nline 8"
