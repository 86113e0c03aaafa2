"""Custom resources without HTTP: defaults, pruning, messages, rules, definitions."""

import copy
import random
from typing import Any

import pytest

from octavo_local.apiserver.admission import IGNORE, WARN, WriteOptions
from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, Object, Resource
from octavo_local.apiserver.store import Store

SCHEMA: Object = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "x-kubernetes-validations": [
                {"rule": "self.low <= self.high", "message": "low must not exceed high"},
                {
                    "rule": "!has(self.frozen) || self.frozen == oldSelf.frozen",
                    "message": "frozen is frozen",
                },
            ],
            "properties": {
                "low": {"type": "integer", "default": 1},
                "high": {"type": "integer", "default": 10, "maximum": 100},
                "frozen": {"type": "string"},
                "mode": {"type": "string", "enum": ["fast", "slow"]},
                "share": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                "size": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "nested": {
                    "type": "object",
                    "default": {},
                    "properties": {"depth": {"type": "integer", "default": 2}},
                },
                "items": {
                    "type": "array",
                    "maxItems": 2,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string", "maxLength": 3}},
                    },
                },
            },
        },
        "status": {"type": "object", "properties": {"seen": {"type": "boolean"}}},
    },
}


def definition(**version: object) -> Object:
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": copy.deepcopy(SCHEMA)},
                    **version,
                }
            ],
        },
    }


@pytest.fixture
def store() -> Store:
    store = Store(rng=random.Random(0))
    store.create(CUSTOM_RESOURCE_DEFINITIONS, None, definition())
    return store


@pytest.fixture
def widgets(store: Store) -> Resource:
    kind = store.kinds.find("example.com", "v1", "widgets")
    assert kind is not None
    return kind.resource


def widget(**spec: Any) -> Object:
    return {"metadata": {"name": "w"}, "spec": spec}


def test_defaults_reach_into_objects_that_are_defaults_themselves(
    store: Store, widgets: Resource
) -> None:
    created = store.create(widgets, "default", widget())
    assert created["spec"] == {"low": 1, "high": 10, "nested": {"depth": 2}}


def test_a_null_gives_way_to_the_default(store: Store, widgets: Resource) -> None:
    assert store.create(widgets, "default", widget(low=None))["spec"]["low"] == 1


def test_unknown_fields_go_where_the_schema_says_nothing(store: Store, widgets: Resource) -> None:
    options = WriteOptions(field_validation=WARN)
    obj = widget(free={"any": {"thing": 1}}, labels={"a": "b"}, other=1)
    created = store.create(widgets, "default", obj, options)
    assert created["spec"]["free"] == {"any": {"thing": 1}}
    assert created["spec"]["labels"] == {"a": "b"}
    assert "other" not in created["spec"]
    assert options.warnings == ['unknown field "spec.other"']


def test_unknown_fields_can_be_ignored_on_request(store: Store, widgets: Resource) -> None:
    options = WriteOptions(field_validation=IGNORE)
    store.create(widgets, "default", widget(other=1), options)
    assert options.warnings == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"other": 1}, 'unknown field "spec.other"'),
        ({"items": [{"name": "a", "x": 1}]}, 'unknown field "spec.items[0].x"'),
        ({"low": 20}, 'spec: Invalid value: "object": low must not exceed high'),
        ({"low": True}, 'spec.low in body must be of type integer: "boolean"'),
        ({"low": 1.5}, 'spec.low in body must be of type integer: "number"'),
        ({"high": 101}, "spec.high in body should be less than or equal to 100"),
        ({"mode": "odd"}, 'spec.mode: Unsupported value: "odd": supported values: "fast", "slow"'),
        ({"share": 0}, "spec.share in body should be greater than 0"),
        ({"size": []}, "spec.size in body must be of type integer,string"),
        ({"labels": {"a": 1}}, "spec.labels.a in body must be of type string"),
        ({"items": [{}]}, "spec.items[0].name: Required value"),
        ({"items": [{"name": "long"}]}, "spec.items[0].name: Too long: may not be more than 3"),
        (
            {"items": [{"name": "a"}, {"name": "a"}]},
            'spec.items[1]: Duplicate value: {"name": "a"}',
        ),
        (
            {"items": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
            "spec.items: Too many: 3: must have at most 2 items",
        ),
    ],
)
def test_faults_name_their_field(
    store: Store, widgets: Resource, spec: Object, message: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        store.create(widgets, "default", widget(**spec))
    assert message in refusal.value.message
    assert store.list(widgets) == []


def test_a_rule_about_the_old_value_is_for_updates(store: Store, widgets: Resource) -> None:
    store.create(widgets, "default", widget(frozen="a"))
    store.update(widgets, "default", "w", widget(frozen="a", low=2))
    with pytest.raises(ApiError, match="frozen is frozen"):
        store.update(widgets, "default", "w", widget(frozen="b"))


def test_the_status_is_a_matter_of_its_own(store: Store, widgets: Resource) -> None:
    created = store.create(widgets, "default", {**widget(), "status": {"seen": True}})
    assert "status" not in created
    store.update(widgets, "default", "w", {**created, "status": {"seen": True}}, "status")
    updated = store.update(widgets, "default", "w", widget(low=3))
    assert (updated["status"], updated["metadata"]["generation"]) == ({"seen": True}, 2)


def test_a_definition_is_established_and_names_itself(store: Store) -> None:
    crd = store.get(CUSTOM_RESOURCE_DEFINITIONS, None, "widgets.example.com")
    conditions = {one["type"]: one["status"] for one in crd["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert crd["status"]["acceptedNames"]["listKind"] == "WidgetList"
    assert crd["status"]["storedVersions"] == ["v1"]


def test_a_changed_definition_changes_what_is_accepted(store: Store, widgets: Resource) -> None:
    changed = definition()
    schema = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["extra"] = {"type": "string"}
    store.update(CUSTOM_RESOURCE_DEFINITIONS, None, "widgets.example.com", changed)
    assert store.create(widgets, "default", widget(extra="x"))["spec"]["extra"] == "x"


def test_a_definition_waits_for_its_last_object(store: Store, widgets: Resource) -> None:
    held = widget()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    store.create(widgets, "default", held)
    store.delete(CUSTOM_RESOURCE_DEFINITIONS, None, "widgets.example.com")
    marked = store.get(widgets, "default", "w")
    marked["metadata"]["finalizers"] = []
    store.update(widgets, "default", "w", marked)
    assert store.list(CUSTOM_RESOURCE_DEFINITIONS) == []
    assert store.kinds.find("example.com", "v1", "widgets") is None


def test_the_same_status_applied_again_is_no_write(store: Store, widgets: Resource) -> None:
    store.create(widgets, "default", widget())

    def apply(seen: bool, manager: str, *, force: bool = False) -> Object:
        wanted: Object = {"metadata": {"name": "w"}, "status": {"seen": seen}}
        options = WriteOptions(manager=manager)
        obj, _ = store.apply(
            widgets, "default", "w", wanted, options, force=force, subresource="status"
        )
        return obj

    first = apply(True, "a")
    assert apply(True, "a") == first
    with pytest.raises(ApiError, match='conflict with "a" with subresource "status"'):
        apply(False, "b")
    forced = apply(False, "b", force=True)
    assert forced["status"] == {"seen": False}
    assert forced["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ({"schema": {}}, "schema.openAPIV3Schema: Required value"),
        (
            {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {}}}}},
            "openAPIV3Schema.properties[a].type: Required value",
        ),
        (
            {
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-validations": [{"rule": "self.a >"}],
                    }
                }
            },
            "x-kubernetes-validations[0].rule: Invalid value: compilation failed",
        ),
        (
            {"additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": "a..b"}]},
            "additionalPrinterColumns[0].jsonPath: Invalid value",
        ),
        ({"storage": False}, "must have exactly one version marked as storage version"),
    ],
)
def test_wrong_definitions_are_refused(version: Object, message: str) -> None:
    with pytest.raises(ApiError) as refusal:
        Store().create(CUSTOM_RESOURCE_DEFINITIONS, None, definition(**version))
    assert message in refusal.value.message


def test_a_definition_is_named_after_its_plural_and_group() -> None:
    wrong = definition()
    wrong["metadata"]["name"] = "widgets"
    with pytest.raises(ApiError, match=r'must be "widgets\.example\.com"'):
        Store().create(CUSTOM_RESOURCE_DEFINITIONS, None, wrong)
