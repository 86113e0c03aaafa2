"""Protobuf bodies of the few kinds that Go clients send so: helm's storage, `kubectl create`.

Field numbers are those of Kubernetes' generated.proto files, which never change. Everything else is
refused with the advice to send JSON; answers are always JSON, which every client understands.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import bad_request, unsupported_media_type
from .resources import Object

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Field:
    """`type` is str, int, bool or bytes, or the name of a message."""

    name: str
    type: type | str
    repeated: bool = False
    map: bool = False


def _map(name: str, type_: type | str) -> Field:
    return Field(name, type_, map=True)


def _list(name: str, type_: type | str) -> Field:
    return Field(name, type_, repeated=True)


_METADATA = Field("metadata", "ObjectMeta")
_QUERY = {1: Field("metadata", "ObjectMeta"), 2: Field("spec", "SelfSubjectAccessReviewSpec")}

_MESSAGES: dict[str, dict[int, Field]] = {
    "OwnerReference": {
        1: Field("kind", str),
        3: Field("name", str),
        4: Field("uid", str),
        5: Field("apiVersion", str),
        6: Field("controller", bool),
        7: Field("blockOwnerDeletion", bool),
    },
    "ObjectMeta": {
        1: Field("name", str),
        2: Field("generateName", str),
        3: Field("namespace", str),
        5: Field("uid", str),
        6: Field("resourceVersion", str),
        7: Field("generation", int),
        11: _map("labels", str),
        12: _map("annotations", str),
        13: _list("ownerReferences", "OwnerReference"),
        14: _list("finalizers", str),
    },
    "Namespace": {1: _METADATA},
    "ServiceAccount": {1: _METADATA},
    "Secret": {
        1: _METADATA,
        2: _map("data", bytes),
        3: Field("type", str),
        4: _map("stringData", str),
        5: Field("immutable", bool),
    },
    "ConfigMap": {
        1: _METADATA,
        2: _map("data", str),
        3: _map("binaryData", bytes),
        4: Field("immutable", bool),
    },
    "SelfSubjectAccessReview": _QUERY,
    "SelfSubjectAccessReviewSpec": {
        1: Field("resourceAttributes", "ResourceAttributes"),
        2: Field("nonResourceAttributes", "NonResourceAttributes"),
    },
    "ResourceAttributes": {
        1: Field("namespace", str),
        2: Field("verb", str),
        3: Field("group", str),
        4: Field("version", str),
        5: Field("resource", str),
        6: Field("subresource", str),
        7: Field("name", str),
    },
    "NonResourceAttributes": {1: Field("path", str), 2: Field("verb", str)},
    "SelfSubjectRulesReview": {1: _METADATA, 2: Field("spec", "SelfSubjectRulesReviewSpec")},
    "SelfSubjectRulesReviewSpec": {1: Field("namespace", str)},
    "SelfSubjectReview": {1: _METADATA},
    "Scale": {1: _METADATA, 2: Field("spec", "ScaleSpec")},
    "ScaleSpec": {1: Field("replicas", int)},
    "Preconditions": {1: Field("uid", str), 2: Field("resourceVersion", str)},
    "DeleteOptions": {
        1: Field("gracePeriodSeconds", int),
        2: Field("preconditions", "Preconditions"),
        3: Field("orphanDependents", bool),
        4: Field("propagationPolicy", str),
        5: _list("dryRun", str),
    },
}
_TOP_LEVEL = (
    "Namespace",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "SelfSubjectAccessReview",
    "SelfSubjectRulesReview",
    "SelfSubjectReview",
    "Scale",
    "DeleteOptions",
)


def decode_object(raw: bytes) -> Object:
    """An object in the envelope of Kubernetes (`Unknown`: its kind, then its bytes)."""
    if not raw.startswith(_MAGIC):
        raise bad_request("the body is not protobuf as Kubernetes writes it")
    envelope = dict(_fields(raw[len(_MAGIC) :]))
    type_meta = dict(_fields(_bytes(envelope.get(1, b""))))
    api_version, kind = (_bytes(type_meta.get(n, b"")).decode() for n in (1, 2))
    if kind not in _TOP_LEVEL:
        raise unsupported_media_type(
            f"local mode does not read protobuf bodies of kind {kind}; send application/json "
            "(with kubectl: write the manifest with --dry-run=client -o yaml and apply it)"
        )
    return {
        "apiVersion": api_version,
        "kind": kind,
        **_message(kind, _bytes(envelope.get(2, b""))),
    }


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in the order of the wire."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(raw) or shift > 63:
                raise bad_request("the protobuf body ends too early")
            byte = raw[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while position < len(raw):
        tag = varint()
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            yield number, varint()
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(wire_type) or (
            varint() if wire_type == _BYTES else -1
        )
        if length < 0 or position + length > len(raw):
            raise bad_request("the protobuf body is damaged")
        yield number, raw[position : position + length]
        position += length


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise bad_request("the protobuf body is damaged: a number stands where bytes must be")
    return value


def _message(name: str, raw: bytes) -> Object:
    known = _MESSAGES[name]
    obj: Object = {}
    for number, value in _fields(raw):
        field = known.get(number)
        if field is None:
            continue  # status and timestamps, which belong to the server anyway
        if field.map:
            entry = dict(_fields(_bytes(value)))
            key = _bytes(entry.get(1, b"")).decode()
            obj.setdefault(field.name, {})[key] = _scalar(field, entry.get(2, b""))
        elif field.repeated:
            obj.setdefault(field.name, []).append(_scalar(field, value))
        elif (one := _scalar(field, value)) not in ("", {}):
            obj[field.name] = one
    return obj


def _scalar(field: Field, value: int | bytes) -> Any:
    if isinstance(field.type, str):
        return _message(field.type, _bytes(value))
    if field.type is bytes:
        return base64.b64encode(_bytes(value)).decode()
    if field.type is str:
        return _bytes(value).decode()
    if not isinstance(value, int):
        raise bad_request("the protobuf body is damaged: bytes stand where a number must be")
    if field.type is bool:
        return bool(value)
    return value - (1 << 64) if value >= 1 << 63 else value
