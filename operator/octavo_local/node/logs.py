"""Containers' output on disk: one file per run, a time stamp before every line."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

_POLL_S: Final = 0.05
_PIECE_BYTES: Final = 256 * 1024
_NEWLINE: Final = ord("\n")
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

    def lines(self, last: int | None = None) -> list[bytes]:
        """The lines so far (the last ones), with their time stamps, without their ends."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(_offset_of_last(file, last))
            return file.read().splitlines()

    def tail(self, num_lines: int, num_bytes: int) -> str:
        """The last lines as text without stamps: the termination message of last resort."""
        texts = [strip_stamp(line) for line in self.lines(num_lines)]
        return b"\n".join(texts)[-num_bytes:].decode(errors="replace")

    async def follow(
        self, *, tail: int | None, since: float | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """Stamped lines without ends, of the last `tail` those written at `since` or later.

        With `follow` until the run ends. The file is read in pieces outside the event loop: it may
        be large, and its reader slow.
        """
        offset, end = await asyncio.to_thread(self._bounds, tail)
        first = b"" if since is None else stamp(since)
        pending = b""
        while follow or offset < end:
            was_closed = self.is_closed  # read before the file: its last lines are still to come
            offset, piece = await asyncio.to_thread(self._piece, offset)
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                if line[: len(first)] >= first:
                    yield line
            if not piece:
                if was_closed or not follow:
                    return
                await asyncio.sleep(_POLL_S)

    def _bounds(self, tail: int | None) -> tuple[int, int]:
        """Where the last `tail` lines begin, and where the file ends."""
        if not self.path.exists():
            return 0, 0
        with self.path.open("rb") as file:
            start = _offset_of_last(file, tail)
            return start, file.seek(0, os.SEEK_END)

    def _piece(self, offset: int) -> tuple[int, bytes]:
        """What follows after `offset`, and where that ends."""
        if not self.path.exists():
            return 0, b""
        with self.path.open("rb") as file:
            if offset > file.seek(0, os.SEEK_END):
                offset = 0  # started afresh
            file.seek(offset)
            piece = file.read(_PIECE_BYTES)
        return offset + len(piece), piece


def _offset_of_last(file: BinaryIO, num_lines: int | None) -> int:
    """Where the last lines begin; every line has its end."""
    if num_lines is None:
        return 0
    position, left = file.seek(0, os.SEEK_END), num_lines
    while position > 0:
        start = max(0, position - _PIECE_BYTES)
        file.seek(start)
        piece = file.read(position - start)
        ends = [at for at, byte in enumerate(piece) if byte == _NEWLINE]
        if len(ends) > left:
            return start + ends[-left - 1] + 1
        position, left = start, left - len(ends)
    return 0


def strip_stamp(line: bytes) -> bytes:
    return line.partition(b" ")[2]
