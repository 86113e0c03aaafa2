"""The status of an InferenceService as the operator reports it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ConditionType(StrEnum):
    READY = "Ready"  # pods answer requests; the reason says whether they are of the current spec
    PROGRESSING = "Progressing"  # something is on its way to change
    PLANNED = "Planned"  # the spec can work; what it became


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What holds, why, and, where it is not well, what to do about it."""

    type: ConditionType
    status: ConditionStatus
    reason: str  # one CamelCase word
    message: str
    next_action: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Everything but times, which depend on what stood there before."""

    observed_generation: int
    replicas: int
    ready_replicas: int
    updated_ready_replicas: int
    desired_replicas: int
    selector: str
    model_name: str | None  # None when the spec cannot be read
    url: str
    conditions: Sequence[Condition]

    def to_api(self, conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The status as the API has it, with conditions already rendered."""
        status = {
            "observedGeneration": self.observed_generation,
            "replicas": self.replicas,
            "readyReplicas": self.ready_replicas,
            "updatedReadyReplicas": self.updated_ready_replicas,
            "readyOfDesired": f"{self.ready_replicas}/{self.desired_replicas}",
            "selector": self.selector,
            "modelName": self.model_name,
            "url": self.url,
            "conditions": [dict(condition) for condition in conditions],
        }
        return {key: value for key, value in status.items() if value is not None}
