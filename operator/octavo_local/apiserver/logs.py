"""`kubectl logs`: finds the container that is meant and streams what the node has of it."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Protocol

from aiohttp import web

from .clock import Clock, parse_timestamp
from .errors import ApiError, bad_request
from .resources import Object

_NOT_OFFERED = ("stream",)


class LogSource(Protocol):
    """Where the output of containers is; the node registers one as `server.log_source`."""

    async def open(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        previous: bool,
        tail_lines: int | None,
        since: float | None,
        timestamps: bool,
    ) -> AsyncIterator[bytes]:
        """Chunks of output; with `follow` it ends when the container ends. LookupError: no log.

        `since`: seconds since the epoch. `timestamps`: every line begins with its time.
        """
        ...


async def serve_log(
    pod: Object, source: LogSource | None, request: web.Request, clock: Clock
) -> web.StreamResponse:
    query, name = request.query, pod["metadata"]["name"]
    for parameter in _NOT_OFFERED:
        if query.get(parameter) not in (None, "", "false", "All"):
            raise bad_request(f"local mode does not offer {parameter} for logs; leave it out")
    container = _container(pod, query.get("container"))
    previous = query.get("previous") == "true"
    if not previous:
        _refuse_waiting(pod, container)
    if source is None:
        raise _no_log(f"no node of this server keeps the output of pod {name}")
    try:
        chunks = await source.open(
            pod["metadata"]["namespace"],
            name,
            container,
            follow=query.get("follow") == "true",
            previous=previous,
            tail_lines=_number(query.get("tailLines"), "tailLines"),
            since=_since(query, clock),
            timestamps=query.get("timestamps") == "true",
        )
    except LookupError as error:
        which = "previous terminated container" if previous else "container"
        raise bad_request(f'{which} "{container}" in pod "{name}" not found') from error
    left = _number(query.get("limitBytes"), "limitBytes")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    try:
        async for chunk in chunks:
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            await response.write(chunk)
            if left == 0:
                break
        await response.write_eof()
    finally:
        # A client that leaves must not keep the node reading.
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
    return response


def _container(pod: Object, asked: str | None) -> str:
    name, spec = pod["metadata"]["name"], pod["spec"]
    main = [one["name"] for one in spec.get("containers") or []]
    every = main + [one["name"] for one in spec.get("initContainers") or []]
    if asked:
        if asked not in every:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    annotations = pod["metadata"].get("annotations") or {}
    preferred = annotations.get("kubectl.kubernetes.io/default-container")
    if preferred in every:
        return str(preferred)
    if len(main) == 1:
        return str(main[0])
    raise bad_request(
        f"a container name must be specified for pod {name}, choose one of: [{' '.join(main)}]"
    )


def _refuse_waiting(pod: Object, container: str) -> None:
    """A container that has not run yet has no log, and the client should know why."""
    status = pod.get("status") or {}
    statuses = [
        *(status.get("containerStatuses") or []),
        *(status.get("initContainerStatuses") or []),
    ]
    name = pod["metadata"]["name"]
    found = next((one for one in statuses if one["name"] == container), None)
    if found is None:
        if not pod["spec"].get("nodeName"):
            raise bad_request(f"pod {name} does not have a host assigned")
        return
    waiting = (found.get("state") or {}).get("waiting")
    if waiting and not found.get("restartCount") and not found.get("lastState"):
        raise bad_request(
            f'container "{container}" in pod "{name}" is waiting to start: '
            f"{waiting.get('reason', 'ContainerCreating')}"
        )


def _no_log(message: str) -> ApiError:
    return ApiError(404, "NotFound", message)


def _since(query: Mapping[str, str], clock: Clock) -> float | None:
    seconds, moment = _number(query.get("sinceSeconds"), "sinceSeconds"), query.get("sinceTime")
    if seconds is not None and moment:
        raise bad_request("at most one of sinceTime and sinceSeconds may be given")
    if seconds is not None:
        return clock().timestamp() - seconds
    if not moment:
        return None
    try:
        return parse_timestamp(moment).timestamp()
    except ValueError:
        raise bad_request(f"sinceTime {moment!r} is no time as 2026-01-31T12:00:00Z") from None


def _number(text: str | None, name: str) -> int | None:
    if text is None or text == "":
        return None
    if not text.isdigit():
        raise bad_request(f"{name} must be a number that is not negative")
    return int(text)
