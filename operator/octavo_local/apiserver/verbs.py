"""The verbs over HTTP: each reads its parameters, calls the store, and shows the result."""

import asyncio
import copy
import json
import weakref
from typing import Any

from aiohttp import web

from . import bodies
from .admission import IGNORE, STRICT, WARN, WriteOptions, check_is_object
from .clock import Clock
from .deletion import BACKGROUND, ORPHAN
from .errors import (
    bad_request,
    conflict,
    method_not_allowed,
    unsupported_media_type,
)
from .events_view import as_core
from .logs import LogSource, serve_log
from .patch import json_patch, merge_patch, strategic_patch
from .presentation import in_version, present_list, present_one
from .resources import EVENTS_K8S_IO, NAMESPACES, REVIEWS, Object
from .reviews import answer_review
from .scale import read_scale, write_scale
from .selectors import Predicate, parse_field_selector, parse_label_selector
from .store import Store
from .targets import Target
from .watch import serve_watch

_STREAMS = ("exec", "attach", "portforward")


class Verbs:
    """Answers requests for objects; discovery and OpenAPI are answered elsewhere."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.log_source: LogSource | None = None
        self._clock = clock
        self._streams: weakref.WeakSet[asyncio.Task[object]] = weakref.WeakSet()

    def end_streams(self) -> None:
        for task in list(self._streams):
            task.cancel()

    async def answer(self, target: Target, request: web.Request) -> web.StreamResponse:
        if target.subresource in _STREAMS:
            raise method_not_allowed(
                f"local mode runs pods as plain processes and does not offer {target.subresource}"
            )
        if target.subresource is None and _verb(target, request) not in target.kind.resource.verbs:
            raise method_not_allowed()
        match request.method:
            case "GET" if target.name is None:
                return await self._list(target, request)
            case "GET":
                return await self._get(target, request)
            case "POST" if target.name is None:
                return await self._create(target, request)
            case "PUT" if target.name is not None:
                return await self._put(target, target.name, request)
            case "PATCH" if target.name is not None:
                return await self._patch(target, target.name, request)
            case "DELETE" if target.subresource is None:
                return await self._delete(target, request)
        raise method_not_allowed()

    # --- reading --------------------------------------------------------------------------------

    async def _get(self, target: Target, request: web.Request) -> web.StreamResponse:
        assert target.name is not None
        obj = self.store.peek(target.stored, target.namespace, target.name)
        if target.subresource == "scale":
            return _json(read_scale(target.kind, obj))
        if target.subresource == "log":
            task = asyncio.current_task()
            assert task is not None
            self._streams.add(task)
            return await serve_log(obj, self.log_source, request, self._clock)
        return _json(present_one(target.kind, obj, request, self._clock()))

    async def _list(self, target: Target, request: web.Request) -> web.StreamResponse:
        fits = _filter(target, request)
        if request.query.get("watch") in ("true", "1"):
            return await serve_watch(
                self.store, target, request, fits, self._clock, self._streams.add
            )
        storage = self.store.storage
        objects = [obj for obj in storage.scan(target.stored.table, target.namespace) if fits(obj)]
        body = present_list(
            target.kind, objects, request, version=storage.version, now=self._clock()
        )
        return _json(body)

    # --- writing --------------------------------------------------------------------------------

    async def _create(self, target: Target, request: web.Request) -> web.StreamResponse:
        body = check_is_object(target.kind, await bodies.read_body(request))
        if target.kind.resource in REVIEWS:
            return _json(answer_review(target.kind.resource, body), status=201)
        if target.kind.resource.namespaced and target.namespace is None:
            raise bad_request("an empty namespace may not be set during creation")
        options = _options(request)
        obj = self.store.create(target.stored, target.namespace, _stored(target, body), options)
        return self._shown(target, obj, request, options, status=201)

    async def _put(self, target: Target, name: str, request: web.Request) -> web.StreamResponse:
        body = check_is_object(target.kind, await bodies.read_body(request))
        options = _options(request)
        if target.subresource == "scale":
            return self._write_scale(target, name, body, options)
        obj = self.store.update(
            target.stored,
            target.namespace,
            name,
            _stored(target, body),
            target.subresource,
            options,
        )
        return self._shown(target, obj, request, options)

    async def _patch(self, target: Target, name: str, request: web.Request) -> web.StreamResponse:
        media_type = request.content_type
        body = await bodies.read_body(request)
        options = _options(request)
        if media_type == bodies.APPLY_PATCH:
            return self._apply(target, name, body, request, options)
        live = self.store.peek(target.stored, target.namespace, name)
        if target.subresource == "scale":
            scale = _patched(target, read_scale(target.kind, live), body, media_type)
            return self._write_scale(target, name, scale, options)
        patched = _patched(target, copy.deepcopy(in_version(target.kind, live)), body, media_type)
        obj = self.store.update(
            target.stored,
            target.namespace,
            name,
            _stored(target, patched),
            target.subresource,
            options,
        )
        return self._shown(target, obj, request, options)

    def _apply(
        self,
        target: Target,
        name: str,
        body: Any,
        request: web.Request,
        options: WriteOptions,
    ) -> web.StreamResponse:
        if target.subresource == "scale" or target.kind.resource is EVENTS_K8S_IO:
            raise unsupported_media_type("server-side apply is not offered here; use a merge patch")
        if "fieldManager" not in request.query:
            raise bad_request("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        obj, is_new = self.store.apply(
            target.stored,
            target.namespace,
            name,
            check_is_object(target.kind, body),
            options,
            force=request.query.get("force") == "true",
            subresource=target.subresource,
        )
        return self._shown(target, obj, request, options, status=201 if is_new else 200)

    def _write_scale(
        self, target: Target, name: str, scale: Object, options: WriteOptions
    ) -> web.StreamResponse:
        live = self.store.get(target.stored, target.namespace, name)
        live["metadata"].pop("resourceVersion")
        wanted = write_scale(target.kind, live, scale)
        obj = self.store.update(target.stored, target.namespace, name, wanted, options=options)
        return _json(read_scale(target.kind, obj))

    async def _delete(self, target: Target, request: web.Request) -> web.StreamResponse:
        body = await bodies.read_body(request) or {}
        how = _delete_options(target, request, check_is_object(target.kind, body))
        preconditions = body.get("preconditions") or {}
        if target.name is None:
            return self._delete_all(target, request, how)
        live = self.store.peek(target.stored, target.namespace, target.name)
        version = preconditions.get("resourceVersion")
        if version and version != live["metadata"]["resourceVersion"]:
            raise conflict(
                target.stored, target.name, "the resourceVersion in the precondition is old"
            )
        obj = self.store.delete(
            target.stored, target.namespace, target.name, uid=preconditions.get("uid"), **how
        )
        if self.store.exists(target.stored, target.namespace, target.name) and not how["dry_run"]:
            return _json(in_version(target.kind, obj))
        if target.stored is NAMESPACES:
            return _json(obj)
        return _json(_success(target, obj))

    def _delete_all(
        self, target: Target, request: web.Request, how: dict[str, Any]
    ) -> web.StreamResponse:
        fits = _filter(target, request)
        storage = self.store.storage
        found = [obj for obj in storage.scan(target.stored.table, target.namespace) if fits(obj)]
        for obj in found:
            metadata = obj["metadata"]
            namespace, name = metadata.get("namespace"), metadata["name"]
            if self.store.exists(target.stored, namespace, name):  # an owner may have taken it
                self.store.delete(target.stored, namespace, name, **how)
        body = present_list(target.kind, found, request, version=storage.version, now=self._clock())
        return _json(body)

    def _shown(
        self,
        target: Target,
        obj: Object,
        request: web.Request,
        options: WriteOptions,
        status: int = 200,
    ) -> web.Response:
        response = _json(present_one(target.kind, obj, request, self._clock()), status=status)
        for warning in options.warnings:
            escaped = warning.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{escaped}"')
        return response


def _verb(target: Target, request: web.Request) -> str:
    verbs = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    verb = verbs.get(request.method, "")
    if target.name is None:
        return {"get": "list", "delete": "deletecollection"}.get(verb, verb)
    return verb


def _json(body: Object, status: int = 200) -> web.Response:
    text = json.dumps(body, separators=(",", ":"))
    return web.Response(text=text, status=status, content_type="application/json")


def _stored(target: Target, obj: Object) -> Object:
    return as_core(obj) if target.kind.resource is EVENTS_K8S_IO else obj


def _filter(target: Target, request: web.Request) -> Predicate:
    """What a list, watch or deletion of many is about."""
    by_label = parse_label_selector(request.query.get("labelSelector", ""))
    by_field = parse_field_selector(request.query.get("fieldSelector", ""))
    namespace, name = target.namespace, target.name

    def fits(obj: Object) -> bool:
        metadata = obj["metadata"]
        return (
            (namespace is None or metadata.get("namespace") == namespace)
            and (name is None or metadata["name"] == name)
            and by_label(metadata.get("labels") or {})
            and by_field(obj)
        )

    return fits


def _options(request: web.Request) -> WriteOptions:
    query = request.query
    validation = query.get("fieldValidation") or WARN
    if validation not in (STRICT, WARN, IGNORE):
        raise bad_request(f"fieldValidation must be Strict, Warn or Ignore, not {validation!r}")
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    return WriteOptions(
        manager=query.get("fieldManager") or agent,
        field_validation=validation,
        dry_run=_dry_run(query.getall("dryRun", [])),
    )


def _dry_run(values: list[str]) -> bool:
    if any(value != "All" for value in values):
        raise bad_request(f"dryRun must be All, not {values}")
    return bool(values)


def _patched(target: Target, obj: Object, body: Any, media_type: str) -> Object:
    match media_type:
        case bodies.JSON_PATCH:
            return json_patch(obj, body)
        case bodies.MERGE_PATCH:
            patched: Object = merge_patch(obj, check_is_object(target.kind, body))
            return patched
        case bodies.STRATEGIC_PATCH if not target.kind.resource.custom:
            merged: Object = strategic_patch(
                obj, check_is_object(target.kind, body), target.kind.schema
            )
            return merged
    raise unsupported_media_type(
        "the body of the request was in an unknown format - accepted media types include: "
        f"{bodies.JSON_PATCH}, {bodies.MERGE_PATCH}, {bodies.APPLY_PATCH}"
    )


def _delete_options(target: Target, request: web.Request, body: Object) -> dict[str, Any]:
    query = request.query
    propagation = query.get("propagationPolicy") or body.get("propagationPolicy")
    if propagation is None:
        propagation = ORPHAN if body.get("orphanDependents") else BACKGROUND
    grace = query.get("gracePeriodSeconds") or body.get("gracePeriodSeconds")
    if grace is not None and not str(grace).isdigit():
        raise bad_request(f"gracePeriodSeconds must be a number of seconds, not {grace!r}")
    dry_run = [*query.getall("dryRun", []), *(body.get("dryRun") or [])]
    return {
        "grace_period_s": None if grace is None else int(grace),
        "propagation": propagation,
        "dry_run": _dry_run(dry_run),
    }


def _success(target: Target, obj: Object) -> Object:
    resource = target.kind.resource
    metadata = obj["metadata"]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": metadata["name"],
            "group": resource.group,
            "kind": resource.plural,
            "uid": metadata["uid"],
        },
    }
