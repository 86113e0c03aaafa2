"""Probes: one try over HTTP, TCP or a command; and the counting that makes a verdict of tries."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from octavo_local.node.process import launcher

_MAX_BODY_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int


def timing_of(probe: Mapping[str, Any]) -> Timing:
    return Timing(
        initial_delay_s=float(probe.get("initialDelaySeconds") or 0),
        period_s=float(probe.get("periodSeconds") or 10),
        timeout_s=float(probe.get("timeoutSeconds") or 1),
        success_threshold=int(probe.get("successThreshold") or 1),
        failure_threshold=int(probe.get("failureThreshold") or 3),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`is_passing` holds until enough tries in a row say otherwise."""

    is_passing: bool
    successes: int = 0
    failures: int = 0

    def after(self, is_success: bool, timing: Timing) -> "Verdict":
        if is_success:
            passing = self.is_passing or self.successes + 1 >= timing.success_threshold
            return replace(self, is_passing=passing, successes=self.successes + 1, failures=0)
        failing = self.failures + 1 >= timing.failure_threshold
        return replace(
            self,
            is_passing=self.is_passing and not failing,
            successes=0,
            failures=self.failures + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a handler needs of the container: where it listens, and how to run a command in it."""

    container: Mapping[str, Any]
    pod_ip: str
    env: Mapping[str, str]
    cwd: Path


async def try_handler(
    handler: Mapping[str, Any], around: Surroundings, timeout_s: float
) -> str | None:
    """One try of a probe or a lifecycle hook; None when it succeeds, else what went wrong."""
    try:
        async with asyncio.timeout(timeout_s):
            if "httpGet" in handler:
                return await _http_get(handler["httpGet"], around)
            if "tcpSocket" in handler:
                await _connect(handler["tcpSocket"], around)
                return None
            if "exec" in handler:
                return await _execute(handler["exec"]["command"], around)
            if "sleep" in handler:
                await asyncio.sleep(float(handler["sleep"]["seconds"]))
                return None
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        # asyncio puts words of its own into strerror; the errno says it better.
        return os.strerror(error.errno).lower() if error.errno else str(error)
    return f"{', '.join(handler)}: local mode can do httpGet, tcpSocket, exec and sleep"


def _port(container: Mapping[str, Any], port: int | str) -> int:
    if isinstance(port, str) and not port.isdigit():
        for declared in container.get("ports") or ():
            if declared.get("name") == port:
                return int(declared["containerPort"])
        raise OSError(f"container has no port named {port!r}")
    return int(port)


async def _connect(target: Mapping[str, Any], around: Surroundings) -> None:
    _, writer = await asyncio.open_connection(
        target.get("host") or around.pod_ip, _port(around.container, target["port"])
    )
    writer.close()


async def _http_get(target: Mapping[str, Any], around: Surroundings) -> str | None:
    if target.get("scheme", "HTTP").upper() != "HTTP":
        return "local mode probes over plain HTTP only"
    host, port = target.get("host") or around.pod_ip, _port(around.container, target["port"])
    given = {item["name"].lower(): item["value"] for item in target.get("httpHeaders") or ()}
    headers = {"host": f"{host}:{port}", "user-agent": "kube-probe/octavo", "accept": "*/*"} | given
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    path = "/" + str(target.get("path") or "/").lstrip("/")
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode())
        await writer.drain()
        answer = await reader.readline()
        fields = answer.split(maxsplit=2)
        if len(fields) < 2 or not fields[1].isdigit():
            return "the answer is not HTTP"
        code = int(fields[1])
        if 200 <= code < 400:
            return None
        return f"HTTP probe failed with statuscode: {code}"
    finally:
        writer.close()


async def _execute(command: Sequence[str], around: Surroundings) -> str | None:
    process = await asyncio.create_subprocess_exec(
        *launcher(),
        *command,
        env=dict(around.env),
        cwd=around.cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    text = output[-_MAX_BODY_BYTES:].decode(errors="replace").strip()
    return None if process.returncode == 0 else text or f"exit status {process.returncode}"
