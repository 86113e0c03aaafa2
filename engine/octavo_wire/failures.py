"""Why an engine could not start, in a form that the operator can read.

The engine writes one JSON object to its termination message and exits with `EXIT_CANNOT_START`;
the kubelet copies it to `status.containerStatuses[].state.terminated.message`, and the operator
turns it into a condition. Reasons are one vocabulary for both sides.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

# EX_CONFIG of sysexits.h: the process is fine, what it was asked to do is not.
EXIT_CANNOT_START: Final = 78
# The kubelet keeps 4096 bytes of a termination message.
MAX_MESSAGE_BYTES: Final = 4096


class Reason(StrEnum):
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_UNREADABLE = "ModelUnreadable"
    MODEL_NOT_SUPPORTED = "ModelNotSupported"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    ACCELERATOR_NOT_FOUND = "AcceleratorNotFound"
    INVALID_SETTING = "InvalidSetting"
    PORT_IN_USE = "PortInUse"
    INTERNAL_ERROR = "InternalError"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFailure:
    """What is wrong, with its numbers (`message`), and what to do about it (`next_action`)."""

    reason: Reason
    message: str
    next_action: str

    def to_json(self) -> str:
        """One line of JSON, at most MAX_MESSAGE_BYTES bytes of UTF-8; a long message is cut."""
        fields = {key: str(value) for key, value in asdict(self).items()}
        while len(text := json.dumps(fields)) > MAX_MESSAGE_BYTES:
            longest = max(("message", "next_action"), key=lambda key: len(fields[key]))
            fields[longest] = fields[longest][: len(fields[longest]) // 2] + "…"
        return text


def parse_startup_failure(text: str) -> StartupFailure | None:
    """Read a termination message back; None when it is not one of ours."""
    try:
        fields = json.loads(text)
        return StartupFailure(
            reason=Reason(fields["reason"]),
            message=str(fields["message"]),
            next_action=str(fields["next_action"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
