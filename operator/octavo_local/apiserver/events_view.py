"""The two faces of events: `v1`, which is stored, and `events.k8s.io/v1` of newer clients."""

from .resources import EVENTS, EVENTS_K8S_IO, Object

_TO_CORE = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_FROM_CORE = {core: other for other, core in _TO_CORE.items()}


def as_core(event: Object) -> Object:
    renamed = {_TO_CORE.get(key, key): value for key, value in event.items()}
    return {**renamed, "apiVersion": EVENTS.api_version}


def from_core(event: Object) -> Object:
    renamed = {_FROM_CORE.get(key, key): value for key, value in event.items()}
    return {**renamed, "apiVersion": EVENTS_K8S_IO.api_version}
