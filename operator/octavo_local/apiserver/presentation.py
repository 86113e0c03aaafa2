"""Answers in the form that the client asked for: the object, its metadata alone, or a table."""

import base64
import json
from collections.abc import Sequence
from datetime import datetime
from enum import Enum

from aiohttp import web

from .errors import bad_request
from .events_view import from_core
from .kinds import Kind
from .resources import EVENTS_K8S_IO, Object
from .tables import META, make_table


class Form(Enum):
    OBJECT = "object"
    METADATA = "metadata"
    TABLE = "table"


def wanted_form(accept: str) -> Form:
    """The first form in an Accept header that this server can give."""
    for choice in accept.split(","):
        if "as=Table" in choice:
            return Form.TABLE
        if "as=PartialObjectMetadata" in choice:
            return Form.METADATA
        if choice.strip().split(";")[0] in ("application/json", "*/*"):
            return Form.OBJECT
    return Form.OBJECT


def in_version(kind: Kind, obj: Object) -> Object:
    """The stored object as this version of its resource shows it."""
    if kind.resource is EVENTS_K8S_IO:
        return from_core(obj)
    if obj["apiVersion"] != kind.resource.api_version:
        return {**obj, "apiVersion": kind.resource.api_version}
    return obj


def present_one(kind: Kind, obj: Object, request: web.Request, now: datetime) -> Object:
    form = wanted_form(request.headers.get("Accept", ""))
    if form is Form.TABLE:
        return make_table(
            kind,
            [obj],
            metadata={"resourceVersion": obj["metadata"].get("resourceVersion", "")},
            now=now,
            include_object=request.query.get("includeObject", "Metadata"),
        )
    obj = in_version(kind, obj)
    return only_metadata(obj) if form is Form.METADATA else obj


def only_metadata(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": obj["metadata"]}


def present_list(
    kind: Kind, objects: Sequence[Object], request: web.Request, *, version: int, now: datetime
) -> Object:
    metadata: Object = {"resourceVersion": str(version)}
    page = _page(objects, request, metadata)
    form = wanted_form(request.headers.get("Accept", ""))
    if form is Form.TABLE:
        return make_table(
            kind,
            page,
            metadata=metadata,
            now=now,
            include_object=request.query.get("includeObject", "Metadata"),
        )
    items = [in_version(kind, obj) for obj in page]
    if form is Form.METADATA:
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": META,
            "metadata": metadata,
            "items": [only_metadata(obj) for obj in items],
        }
    return {
        "kind": f"{kind.resource.kind}List",
        "apiVersion": kind.resource.api_version,
        "metadata": metadata,
        "items": items,
    }


def _page(objects: Sequence[Object], request: web.Request, metadata: Object) -> Sequence[Object]:
    """One page by `limit` and `continue`; the token names the last object that was sent."""
    token = request.query.get("continue")
    if token:
        try:
            after = tuple(json.loads(base64.urlsafe_b64decode(token)))
        except ValueError as error:
            raise bad_request("continue key is not valid") from error
        objects = [obj for obj in objects if _place(obj) > after]
    try:
        limit = int(request.query.get("limit") or 0)
    except ValueError as error:
        raise bad_request("limit must be a number") from error
    if limit <= 0 or len(objects) <= limit:
        return objects
    page = objects[:limit]
    last = json.dumps(_place(page[-1])).encode()
    metadata["continue"] = base64.urlsafe_b64encode(last).decode()
    metadata["remainingItemCount"] = len(objects) - limit
    return page


def _place(obj: Object) -> tuple[str, str]:
    return (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
