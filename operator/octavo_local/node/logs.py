"""Containers' output on disk: one file per run, a time stamp before every line."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

_POLL_S: Final = 0.05
_MAX_LINE_BYTES: Final = 64 * 1024
# A run's log is started afresh beyond this, so that a talkative pod cannot fill the disk.
_MAX_LOG_BYTES: Final = 64 * 1024 * 1024


def stamp(moment: float) -> bytes:
    """RFC 3339 with microseconds and Z, of constant width: as sortable text as a time."""
    return (
        datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
    ).encode()


@dataclass(slots=True)
class LogFile:
    """The output of one run of a container."""

    path: Path
    is_closed: bool = False
    _file: BinaryIO | None = field(default=None, repr=False)

    def write(self, line: bytes, now: float) -> None:
        """Append a line, given with or without its end."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = self.path.open("wb", buffering=0)
        if self._file.tell() > _MAX_LOG_BYTES:
            self._file.seek(0)
            self._file.truncate()
        self._file.write(stamp(now) + b" " + line.removesuffix(b"\n") + b"\n")

    def close(self) -> None:
        self.is_closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    async def copy_from(self, stream: asyncio.StreamReader, now: Callable[[], float]) -> None:
        """Write what the stream gives until it ends; a line without end is cut into pieces."""
        pending = b""
        while chunk := await stream.read(_MAX_LINE_BYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self.write(line, now())
            while len(pending) > _MAX_LINE_BYTES:
                self.write(pending[:_MAX_LINE_BYTES], now())
                pending = pending[_MAX_LINE_BYTES:]
        if pending:
            self.write(pending, now())

    def lines(self) -> list[bytes]:
        """All lines so far, with their time stamps, without their ends."""
        return self.path.read_bytes().splitlines() if self.path.exists() else []

    def tail(self, num_lines: int, num_bytes: int) -> str:
        """The last lines as text without stamps: the termination message of last resort."""
        texts = [strip_stamp(line) for line in self.lines()[-num_lines:]]
        return b"\n".join(texts)[-num_bytes:].decode(errors="replace")

    async def follow(
        self, *, tail: int | None, since: float | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """Stamped lines without ends, from the last `tail` on; with `follow` until the run ends."""
        chosen = self.lines()
        offset = self.path.stat().st_size if self.path.exists() else 0
        if since is not None:
            first = stamp(since)
            chosen = [line for line in chosen if line[: len(first)] >= first]
        for line in chosen[-tail:] if tail else [] if tail == 0 else chosen:
            yield line
        pending = b""
        while follow:
            was_closed = self.is_closed  # read before the file: its last lines are still to come
            if self.path.exists():
                with self.path.open("rb") as file:
                    if offset > file.seek(0, 2):
                        offset = 0  # started afresh
                    file.seek(offset)
                    read = file.read()
                offset += len(read)
                *lines, pending = (pending + read).split(b"\n")
                for line in lines:
                    yield line
            if was_closed:
                return
            await asyncio.sleep(_POLL_S)


def strip_stamp(line: bytes) -> bytes:
    return line.partition(b" ")[2]
