"""Pod -> node: does it fit, and if not, the message that users know from a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from octavo_local.objects import Object, is_deleting, labels_of, matches_expression, name_of
from octavo_local.quantities import QuantityError, parse_quantity, pod_requests

_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a pod goes, or why it goes nowhere (`node` is None then)."""

    node: str | None
    message: str


def needs_node(pod: Mapping[str, Any]) -> bool:
    """Whether a pod waits for the scheduler."""
    return not pod["spec"].get("nodeName") and not is_deleting(pod) and not _is_finished(pod)


def decide_placement(
    pod: Mapping[str, Any], nodes: Sequence[Object], bound_pods: Sequence[Object]
) -> Placement:
    """The first node on which the pod fits beside the pods that are bound to it."""
    objections: dict[str, int] = {}
    for node in nodes:
        found = _objections(pod, node, bound_pods)
        if not found:
            return Placement(node=name_of(node), message="")
        for objection in found:
            objections[objection] = objections.get(objection, 0) + 1
    listed = ", ".join(f"{count} {text}" for text, count in sorted(objections.items()))
    available = f"0/{len(nodes)} nodes are available"
    return Placement(node=None, message=f"{available}: {listed}." if listed else f"{available}.")


def _objections(
    pod: Mapping[str, Any], node: Mapping[str, Any], bound_pods: Sequence[Object]
) -> list[str]:
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] != "PreferNoSchedule" and not _is_tolerated(pod, taint):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not _matches_node(pod["spec"], node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    try:
        wanted = pod_requests(pod["spec"])
    except QuantityError as error:
        return [f"pod asks for something that is no quantity ({error})"]
    used: dict[str, Fraction] = {}
    on_node = [
        other
        for other in bound_pods
        if other["spec"].get("nodeName") == name_of(node) and not _is_finished(other)
    ]
    for other in on_node:
        for resource, amount in pod_requests(other["spec"]).items():
            used[resource] = used.get(resource, Fraction(0)) + amount
    room = {
        resource: parse_quantity(amount)
        for resource, amount in (node["status"].get("allocatable") or {}).items()
    }
    lacking = [
        f"Insufficient {resource}"
        for resource, amount in sorted(wanted.items())
        if amount > 0 and used.get(resource, 0) + amount > room.get(resource, Fraction(0))
    ]
    if len(on_node) + 1 > room.get("pods", Fraction(110)):
        lacking.insert(0, "Too many pods")
    return lacking


def _is_finished(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in _FINISHED


def _is_tolerated(pod: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    for toleration in pod["spec"].get("tolerations") or ():
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        if toleration.get("operator", "Equal") == "Exists":
            if toleration.get("key") in (None, "", taint["key"]):
                return True
        elif toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get(
            "value", ""
        ):
            return True
    return False


def _matches_node(spec: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    labels = labels_of(node)
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    names = {"metadata.name": name_of(node)}
    return any(
        all(matches_expression(item, labels) for item in term.get("matchExpressions") or ())
        and all(matches_expression(item, names) for item in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
    )
