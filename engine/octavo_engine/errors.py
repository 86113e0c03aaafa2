"""The engine's own errors.

OctavoError
├── CannotStart          the engine cannot be built from these settings; carries a StartupFailure
└── RequestError         a request is at fault; becomes an OpenAI-shaped error answer
    ├── InvalidRequest   400, with the field that is wrong
    ├── ContextTooLong   400, code context_length_exceeded
    ├── ModelNotServed   404, code model_not_found
    └── Overloaded       429, with Retry-After
"""

from octavo_wire.failures import Reason, StartupFailure


class OctavoError(Exception):
    """Base of every error that the engine raises on purpose."""


class CannotStart(OctavoError):
    """The engine cannot start, for a reason that a user can act on."""

    def __init__(self, reason: Reason, message: str, next_action: str) -> None:
        super().__init__(f"{message} {next_action}")
        self.failure = StartupFailure(reason=reason, message=message, next_action=next_action)


class RequestError(OctavoError):
    """A request that cannot be served as it is.

    `param` names the field at fault; `code` and `kind` are the `code` and `type` of the answer.
    """

    status = 400
    kind = "invalid_request_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(RequestError):
    """A field has a value, or is there at all, that cannot be served."""


class ContextTooLong(RequestError):
    """The request can never fit, by the model's context or by the KV cache; says the limit."""

    code = "context_length_exceeded"


class ModelNotServed(RequestError):
    status = 404
    code = "model_not_found"


class Overloaded(RequestError):
    """The queue is full; try again after `retry_after_s`."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
