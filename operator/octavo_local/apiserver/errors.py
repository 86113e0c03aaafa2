"""Refusals of the API server, in the words and the shape (`Status`) that clients understand.

ApiError
├── bad_request, unauthorized, forbidden, not_found, no_such_path, method_not_allowed
├── already_exists, conflict, apply_conflict, expired, too_large
├── unsupported_media_type, invalid (422 with one cause for each field at fault)
└── misdirected (the Host header names another machine)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .resources import Object, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One field at fault; `reason` is a `FieldValueInvalid` and the like."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ApiError(Exception):
    """A request that the server refuses; `status()` is the body of the answer."""

    def __init__(
        self, code: int, reason: str, message: str, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def _about(resource: Resource, name: str) -> dict[str, Any]:
    return {"name": name, "group": resource.group, "kind": resource.plural}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    return ApiError(
        403,
        "Forbidden",
        f'{resource.qualified} "{name}" is forbidden: {why}',
        _about(resource, name),
    )


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(
        404, "NotFound", f'{resource.qualified} "{name}" not found', _about(resource, name)
    )


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed(why: str = "") -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", f"{message}: {why}" if why else message)


def already_exists(resource: Resource, name: str) -> ApiError:
    return ApiError(
        409,
        "AlreadyExists",
        f'{resource.qualified} "{name}" already exists',
        _about(resource, name),
    )


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}',
        _about(resource, name),
    )


def apply_conflict(causes: Sequence[Cause]) -> ApiError:
    """`causes` hold one field each, and whom it belongs to."""
    if len(causes) == 1:
        text = f"1 conflict: {causes[0].message}: {causes[0].field}"
    else:
        by_owner: dict[str, list[str]] = {}
        for cause in causes:
            by_owner.setdefault(cause.message, []).append(f"- {cause.field}")
        groups = [
            owner.replace("conflict with", "conflicts with", 1) + ":\n" + "\n".join(fields)
            for owner, fields in by_owner.items()
        ]
        text = f"{len(causes)} conflicts: " + "\n".join(groups)
    return ApiError(
        409,
        "Conflict",
        f"Apply failed with {text}",
        {
            "causes": [
                {"reason": "FieldManagerConflict", "message": cause.message, "field": cause.field}
                for cause in causes
            ]
        },
    )


def expired(oldest: int) -> ApiError:
    return ApiError(
        410,
        "Expired",
        f"too old resource version: the history starts at {oldest}; list again, then watch",
    )


def too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413,
        "RequestEntityTooLarge",
        f"Request entity too large: limit is {limit_bytes} bytes",
    )


def unsupported_media_type(message: str) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", message)


def misdirected(host: str) -> ApiError:
    return ApiError(
        421,
        "Misdirected",
        f"this server answers to loopback names and addresses only, not to {host!r}",
    )


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> ApiError:
    assert causes
    texts = [str(cause) for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return ApiError(
        422,
        "Invalid",
        f'{resource.kind + ("." + resource.group if resource.group else "")} "{name}" '
        f"is invalid: {text}",
        {
            "name": name,
            "group": resource.group,
            "kind": resource.kind,
            "causes": [
                {"reason": cause.reason, "message": cause.message, "field": cause.field}
                for cause in causes
            ],
        },
    )
