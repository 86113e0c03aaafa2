"""A local port for every port of a Service: connections go to its ready pods in turn."""

import asyncio
import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

Target = tuple[str, int]

LOCAL_HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 64 * 1024
_CONNECT_TIMEOUT_S: Final = 5.0
_LINGER_S: Final = 1.0
_NOBODY_TEXT: Final = b"no pod of this service is ready yet\n"
_NOBODY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"retry-after: 1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_NOBODY_TEXT), _NOBODY_TEXT)
)


class NoPortAvailable(RuntimeError):
    """No local port is free; the message names the range."""


@dataclass(slots=True)
class PortProxy:
    """One listening port; `targets` says at every connection who is ready."""

    port: int
    targets: Callable[[], list[Target]]
    _server: asyncio.Server
    _turn: int = 0
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    async def open(
        cls, targets: Callable[[], list[Target]], *, first_port: int, num_ports: int = 200
    ) -> Self:
        """Listen on the first free port from `first_port` on; raises NoPortAvailable."""
        proxy: Self | None = None

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert proxy is not None
            await proxy.serve(reader, writer)

        for port in range(first_port, min(first_port + num_ports, 65536)):
            try:
                server = await asyncio.start_server(serve, LOCAL_HOST, port)
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                raise
            proxy = cls(port, targets, server)
            return proxy
        raise NoPortAvailable(
            f"no free port on {LOCAL_HOST} from {first_port} on: choose another with --port"
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, both ways, until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            upstream = await self._connect()
            if upstream is None:
                await _refuse(reader, writer)
                return
            await _carry(reader, writer, *upstream)
        except (ConnectionError, asyncio.CancelledError):
            return  # either side left, or the proxy is closing
        finally:
            self._connections.discard(task)
            await _close(writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        targets = self.targets()
        self._turn += 1
        for offset in range(len(targets)):
            host, port = targets[(self._turn + offset) % len(targets)]
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(host, port)
            except (OSError, TimeoutError):
                continue  # it ended a moment ago: the next one may serve
        return None

    async def close(self) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer 503, then read what the client still sends: closing on it would reset the answer."""
    writer.write(_NOBODY)
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(_CHUNK_BYTES):
                continue


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream_reader: asyncio.StreamReader,
    upstream_writer: asyncio.StreamWriter,
) -> None:
    """Copy both ways. The end of the answer ends both; the end of the request is passed on."""
    sending = asyncio.create_task(_copy(reader, upstream_writer))
    try:
        await _copy(upstream_reader, writer)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await _close(upstream_writer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
