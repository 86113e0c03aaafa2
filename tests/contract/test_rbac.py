"""The chart grants what the operator uses: all of it, and nothing else."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from octavo_operator.shell.permissions import OWN_NAMESPACE, SERVED_NAMESPACES, Permission

MANIFESTS = Path(__file__).parents[2] / "operator" / "octavo_local" / "manifests" / "operator.yaml"

Granted = set[tuple[str, str, str]]


def granted(kind: str) -> Granted:
    """(group, resource, verb) of every rule of that kind, whatever names it is narrowed to."""
    objects: list[dict[str, Any]] = [
        obj for obj in yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")) if obj
    ]
    return {
        (group, resource, verb)
        for obj in objects
        if obj["kind"] == kind
        for rule in obj["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(permissions: Iterable[Permission]) -> Granted:
    return {(entry.group, entry.resource, verb) for entry in permissions for verb in entry.verbs}


def test_served_namespaces_are_covered_exactly() -> None:
    assert granted("ClusterRole") == used(SERVED_NAMESPACES)


def test_the_own_namespace_is_covered_exactly() -> None:
    assert granted("Role") == used(OWN_NAMESPACE)
