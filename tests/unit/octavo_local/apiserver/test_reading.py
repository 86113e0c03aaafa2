"""Selectors, paths, ages, field sets: small readers and writers of text."""

from datetime import UTC, datetime

import pytest

from octavo_local.apiserver.durations import human_duration
from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.field_sets import fields_of, from_fields_v1, readable, to_fields_v1
from octavo_local.apiserver.http import is_local_host
from octavo_local.apiserver.jsonpath import InvalidPath, set_value_at, value_at
from octavo_local.apiserver.pod_status import summarize
from octavo_local.apiserver.resources import PODS, Object
from octavo_local.apiserver.schemas import builtin_schema
from octavo_local.apiserver.selectors import (
    parse_field_selector,
    parse_label_selector,
    selector_text,
)
from octavo_local.objects import matches_selector


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier=front", True),
        ("app!=web", False),
        ("other!=x", True),
        ("app in (api, web)", True),
        ("app notin (api,web)", False),
        ("other notin (a)", True),
        ("app", True),
        ("!app", False),
        ("!other", True),
        ("app in (web),tier", True),
    ],
)
def test_label_selectors(selector: str, matches: bool) -> None:
    assert parse_label_selector(selector)({"app": "web", "tier": "front"}) is matches


@pytest.mark.parametrize("selector", ["a=b=c", "a in b", "a,(", "=x"])
def test_label_selectors_that_make_no_sense_are_a_bad_request(selector: str) -> None:
    with pytest.raises(ApiError) as refusal:
        parse_label_selector(selector)
    assert refusal.value.code == 400


def test_selector_objects_match_and_have_a_text() -> None:
    selector: Object = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]},
            {"key": "old", "operator": "DoesNotExist"},
        ],
    }
    assert matches_selector(selector, {"app": "web", "tier": "a"})
    assert not matches_selector(selector, {"app": "web", "tier": "a", "old": ""})
    assert selector_text(selector) == "app=web,tier in (a,b),!old"
    assert parse_label_selector(selector_text(selector))({"app": "web", "tier": "b"})


def test_field_selectors_read_plain_paths() -> None:
    fits = parse_field_selector("metadata.name=p,status.phase!=Running")
    assert fits({"metadata": {"name": "p"}, "status": {"phase": "Pending"}})
    assert fits({"metadata": {"name": "p"}})
    assert not fits({"metadata": {"name": "p"}, "status": {"phase": "Running"}})


def test_paths_pick_conditions_and_indexes() -> None:
    obj = {"status": {"conditions": [{"type": "Ready", "status": "True"}], "list": [1, 2]}}
    assert value_at(obj, '.status.conditions[?(@.type=="Ready")].status') == "True"
    assert value_at(obj, '.status.conditions[?(@.type=="Other")].status') is None
    assert value_at(obj, ".status.list[-1]") == 2
    assert value_at(obj, ".status.list[7]") is None
    assert value_at({"metadata": {"labels": {"a.b/c": "x"}}}, r".metadata.labels.a\.b/c") == "x"
    with pytest.raises(InvalidPath):
        value_at(obj, ".status..x")
    made: Object = {}
    set_value_at(made, ".spec.replicas", 3)
    assert made == {"spec": {"replicas": 3}}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (125, "2m5s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (50 * 3600, "2d2h"),
        (10 * 86400, "10d"),
        (800 * 86400, "2y70d"),
        (-5, "<invalid>"),
    ],
)
def test_ages(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1:6443", True),
        ("127.8.9.1", True),
        ("[::1]:6443", True),
        ("localhost:1", True),
        ("LOCALHOST", True),
        ("kubernetes.default.svc", True),
        ("127.0.0.1.example.com", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
        ("[::ffff:10.0.0.1]", False),
    ],
)
def test_loopback_names_and_addresses_only(host: str, local: bool) -> None:
    assert is_local_host(host) is local


def test_field_sets_survive_their_text_form() -> None:
    obj: Object = {
        "metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "main", "ports": [{"containerPort": 80}]}]},
    }
    fields = fields_of(obj, builtin_schema(PODS))
    assert from_fields_v1(to_fields_v1(fields)) == fields
    texts = {readable(path) for path in fields}
    assert '.spec.containers[name="main"].ports[containerPort=80,protocol="TCP"]' in texts
    assert ".metadata.labels.a" in texts
    assert not any("metadata.name" in text for text in texts)


NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({"phase": "Pending"}, ("0/1", "Pending", "0")),
        (
            {"phase": "Running", "containerStatuses": [{"ready": True, "state": {"running": {}}}]},
            ("1/1", "Running", "0"),
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "ready": False,
                        "restartCount": 3,
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"finishedAt": "2026-01-01T00:08:00Z"}},
                    }
                ],
            },
            ("0/1", "CrashLoopBackOff", "3 (2m ago)"),
        ),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]},
            ("0/1", "ExitCode:3", "0"),
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]},
            ("0/1", "Init:0/1", "0"),
        ),
    ],
)
def test_pod_status_as_kubectl_shows_it(status: Object, shown: tuple[str, str, str]) -> None:
    pod: Object = {
        "metadata": {},
        "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
        "status": status,
    }
    summary = summarize(pod, NOW)
    assert (summary.ready, summary.status, summary.restarts) == shown
