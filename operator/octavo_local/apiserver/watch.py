"""Watches over HTTP: one JSON document a line for every change that concerns the client."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from .clock import Clock
from .errors import ApiError, bad_request, expired
from .presentation import Form, in_version, only_metadata, wanted_form
from .resources import Object
from .selectors import Predicate
from .storage import ADDED, DELETED, MAX_LAG, MODIFIED, Change
from .store import Store
from .tables import make_table
from .targets import Target

BOOKMARK = "BOOKMARK"
_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}
_DEFAULT_TIMEOUT_S = 30 * 60
_BOOKMARK_INTERVAL_S = 30.0


@dataclass(slots=True, kw_only=True)
class Lines:
    """Writes events in the form that the client asked for."""

    target: Target
    request: web.Request
    response: web.StreamResponse
    clock: Clock
    header_sent: bool = field(default=False)

    async def send(self, type_: str, obj: Object) -> None:
        kind = self.target.kind
        form = wanted_form(self.request.headers.get("Accept", ""))
        if type_ == "ERROR":
            shown = obj
        elif form is Form.TABLE:
            metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            shown = make_table(
                kind,
                [] if type_ == BOOKMARK else [obj],
                metadata=metadata,
                now=self.clock(),
                include_object=self.request.query.get("includeObject", "Metadata"),
                header=not self.header_sent,
            )
            if type_ == BOOKMARK:
                shown["rows"] = [{"cells": [], "object": only_metadata(obj)}]
            self.header_sent = True
        else:
            shown = in_version(kind, obj)
            if form is Form.METADATA:
                shown = only_metadata(shown)
        line = json.dumps({"type": type_, "object": shown}, separators=(",", ":"))
        await self.response.write(line.encode() + b"\n")

    async def bookmark(self, version: int, annotations: Object | None = None) -> None:
        resource = self.target.kind.resource
        metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        bare = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        await self.send(BOOKMARK, bare)


def concerned(change: Change, fits: Predicate) -> str | None:
    """The event by which a client that sees what fits learns of a change, if it does."""
    before = change.before is not None and fits(change.before)
    after = change.type != DELETED and fits(change.obj)
    if after:
        return MODIFIED if before else ADDED
    return DELETED if before else None


async def serve_watch(
    store: Store,
    target: Target,
    request: web.Request,
    fits: Predicate,
    clock: Clock,
    register: Callable[[asyncio.Task[object]], None],
) -> web.StreamResponse:
    """Streams until the client leaves, its timeout passes, or the server stops."""
    query, table = request.query, target.stored.table
    bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
    initial = query.get("sendInitialEvents") in ("true", "1")
    since = _version(query.get("resourceVersion", ""))
    replay = initial or since is None
    if since is not None and since > store.storage.version:
        raise expired(store.storage.version)  # the client remembers another life of this server
    changes = store.storage.subscribe(table, None if replay else since, max_lag=MAX_LAG)
    try:
        existing = [obj for obj in store.storage.scan(table) if fits(obj)] if replay else []
        version = store.storage.version
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        lines = Lines(target=target, request=request, response=response, clock=clock)
        task = asyncio.current_task()
        assert task is not None
        register(task)
        for obj in existing:
            await lines.send(ADDED, obj)
        if initial:
            await lines.bookmark(version, _INITIAL_EVENTS_END)
        try:
            async with asyncio.timeout(_timeout_s(query.get("timeoutSeconds"))):
                while True:
                    try:
                        change = await asyncio.wait_for(changes.next(), _BOOKMARK_INTERVAL_S)
                    except TimeoutError:
                        if bookmarks:
                            await lines.bookmark(version)
                        continue
                    version = change.version
                    event = concerned(change, fits)
                    if event is not None:
                        await lines.send(event, change.obj)
        except TimeoutError:
            if bookmarks:
                await lines.bookmark(version)
        except ApiError as error:
            await lines.send("ERROR", error.status())
        await response.write_eof()
        return response
    finally:
        changes.close()


def _version(text: str) -> int | None:
    """None means: whatever there is now, then what follows."""
    if text in ("", "0"):
        return None
    if not text.isdigit():
        raise bad_request(f"resourceVersion: Invalid value: {json.dumps(text)}: must be a number")
    return int(text)


def _timeout_s(text: str | None) -> float:
    if text is None:
        return _DEFAULT_TIMEOUT_S
    if not text.isdigit():
        raise bad_request("timeoutSeconds must be a number of seconds")
    return float(text) or _DEFAULT_TIMEOUT_S
