"""Variables and words of a container, as its spec has them."""

from collections.abc import Mapping
from typing import Any

import pytest

from octavo_local.node.environment import (
    ConfigError,
    expand,
    expand_words,
    resolve_environment,
)

NODE = {"status": {"allocatable": {"cpu": "2", "memory": "4Gi"}}}
POD: dict[str, Any] = {
    "metadata": {
        "name": "web-0",
        "namespace": "team",
        "uid": "u",
        "labels": {"app": "web", "a/b": "c"},
        "annotations": {"note": "n"},
    },
    "spec": {"nodeName": "local", "serviceAccountName": "web", "containers": []},
}
CONTAINER: dict[str, Any] = {
    "name": "c",
    "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "250m"}},
}
OBJECTS = {
    ("Secret", "keys"): {"token": "s3cret"},
    ("ConfigMap", "settings"): {"COLOR": "red", "SIZE": "9"},
}


def lookup(kind: str, name: str) -> Mapping[str, str] | None:
    return OBJECTS.get((kind, name))


def resolve(*env: dict[str, Any], env_from: tuple[dict[str, Any], ...] = ()) -> dict[str, str]:
    container = {**CONTAINER, "env": list(env), "envFrom": list(env_from)}
    return resolve_environment(POD, container, pod_ip="127.77.0.9", node=NODE, lookup=lookup)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/x", "1/x"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A)$(B)", "12"),
        ("100%$", "100%$"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


def test_variables_see_those_before_them_and_words_see_all() -> None:
    env = resolve({"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2$(C)"})
    assert env == {"A": "1", "B": "12$(C)"}
    assert expand_words(["--b=$(B)"], {"B": "x"}) == ["--b=x"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web-0"),
        ("metadata.namespace", "team"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['a/b']", "c"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['note']", "n"),
        ("spec.nodeName", "local"),
        ("spec.serviceAccountName", "web"),
        ("status.podIP", "127.77.0.9"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_fields_of_the_downward_api(path: str, value: str) -> None:
    assert resolve({"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}) == {"X": value}


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.memory"}, "1073741824"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "1024"),
        ({"resource": "requests.cpu"}, "1"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
        ({"resource": "limits.cpu"}, "2"),  # no limit of its own: what the node has
    ],
)
def test_resources_of_the_downward_api(reference: dict[str, str], value: str) -> None:
    assert resolve({"name": "X", "valueFrom": {"resourceFieldRef": reference}}) == {"X": value}


def test_values_of_secrets_and_config_maps() -> None:
    assert resolve(
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "COLOR"}}},
        env_from=({"prefix": "S_", "configMapRef": {"name": "settings"}},),
    ) == {"S_COLOR": "red", "S_SIZE": "9", "T": "s3cret", "C": "red"}


@pytest.mark.parametrize(
    ("value_from", "message"),
    [
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        ({"secretKeyRef": {"name": "keys", "key": "k"}}, "couldn't find key k in Secret team/keys"),
        ({"fieldRef": {"fieldPath": "status.phase"}}, "status.phase"),
        ({"fileKeyRef": {}}, "fileKeyRef is not supported"),
    ],
)
def test_what_is_missing_is_named(value_from: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({"name": "X", "valueFrom": value_from})


def test_what_is_optional_may_be_missing() -> None:
    reference = {"name": "none", "key": "k", "optional": True}
    assert resolve({"name": "X", "valueFrom": {"secretKeyRef": reference}}) == {}
