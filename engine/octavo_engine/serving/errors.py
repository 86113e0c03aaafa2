"""Errors as the OpenAI API writes them: `{"error": {message, type, param, code}}`."""

from typing import Any

from octavo_engine.errors import OctavoError, Overloaded, RequestError


class GenerationFailed(OctavoError):
    """A request that was admitted could not be finished; its own fault it is not."""


class NotReady(OctavoError):
    """The server cannot take requests just now: it loads its model, or it shuts down."""

    def __init__(self, message: str, *, code: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class DeadlineExceeded(OctavoError):
    """The time that a request had is up, and not one token was made."""


class BodyTooLarge(RequestError):
    status = 413
    code = "request_too_large"


class NotJson(RequestError):
    status = 415
    code = "unsupported_media_type"


class Unauthorized(RequestError):
    status = 401
    code = "invalid_api_key"


class NoSuchRoute(RequestError):
    """No such path, or not by this method, or not for this model."""

    code = "not_found"

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


def error_status(error: OctavoError) -> int:
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, DeadlineExceeded):
        return 504
    return 503 if isinstance(error, NotReady) else 500


def error_payload(error: OctavoError) -> dict[str, Any]:
    """The body of an error answer, or of an event in the middle of a stream."""
    if isinstance(error, RequestError):
        kind, param, code, message = error.kind, error.param, error.code, error.message
    else:
        code = "engine_error"
        if isinstance(error, NotReady):
            code = error.code
        elif isinstance(error, DeadlineExceeded):
            code = "deadline_exceeded"
        kind, param, message = "server_error", None, str(error)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_headers(error: OctavoError) -> dict[str, str]:
    if isinstance(error, Overloaded | NotReady):
        return {"Retry-After": str(error.retry_after_s)}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
