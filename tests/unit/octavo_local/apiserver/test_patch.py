"""The three kinds of patch, on the cases that kubectl produces."""

import pytest

from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.patch import json_patch, merge_patch, strategic_patch
from octavo_local.apiserver.resources import DEPLOYMENTS, PODS, Object
from octavo_local.apiserver.schemas import builtin_schema

POD = builtin_schema(PODS)


def pod(*containers: Object) -> Object:
    return {"spec": {"containers": list(containers)}}


def test_merge_patch_removes_by_null_and_replaces_lists() -> None:
    target = {"a": {"b": 1, "c": 2}, "l": [1, 2]}
    assert merge_patch(target, {"a": {"b": None}, "l": [3]}) == {"a": {"c": 2}, "l": [3]}
    assert target == {"a": {"b": 1, "c": 2}, "l": [1, 2]}


def test_json_patch_adds_tests_and_removes() -> None:
    operations = [
        {"op": "test", "path": "/a", "value": 1},
        {"op": "add", "path": "/l/-", "value": 2},
        {"op": "remove", "path": "/a"},
    ]
    assert json_patch({"a": 1, "l": [1]}, operations) == {"l": [1, 2]}


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "remove", "path": "/missing"}], 422),
        ([{"op": "jump", "path": "/a"}], 422),
        ({"op": "remove"}, 400),
    ],
)
def test_json_patches_that_cannot_be_applied(operations: object, code: int) -> None:
    with pytest.raises(ApiError) as refusal:
        json_patch({"a": 1}, operations)
    assert refusal.value.code == code


def test_strategic_patch_merges_entries_by_their_key() -> None:
    target = pod({"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"})
    patched = strategic_patch(target, pod({"name": "b", "image": "b:2"}), POD)
    assert patched == pod({"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"})
    assert target["spec"]["containers"][1]["image"] == "b:1"


def test_strategic_patch_adds_and_deletes_entries() -> None:
    target = pod({"name": "a"}, {"name": "b"})
    patch = pod({"name": "a", "$patch": "delete"}, {"name": "c"})
    assert strategic_patch(target, patch, POD) == pod({"name": "b"}, {"name": "c"})


def test_strategic_patch_puts_entries_in_the_order_asked_for() -> None:
    target = pod({"name": "a"}, {"name": "b"})
    patch: Object = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}],
            "containers": [{"name": "c"}],
        }
    }
    assert strategic_patch(target, patch, POD) == pod({"name": "c"}, {"name": "b"}, {"name": "a"})


def test_strategic_patch_replaces_a_list_or_a_map_when_told_to() -> None:
    target = pod({"name": "a"}, {"name": "b"})
    patch = pod({"$patch": "replace"}, {"name": "c"})
    assert strategic_patch(target, patch, POD) == pod({"name": "c"})
    replaced = strategic_patch({"metadata": {"a": 1}}, {"metadata": {"$patch": "replace"}}, POD)
    assert replaced == {"metadata": {}}


def test_strategic_patch_keeps_only_named_keys_when_told_to() -> None:
    target = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    patched = strategic_patch(target, patch, builtin_schema(DEPLOYMENTS))
    assert patched == {"spec": {"strategy": {"type": "Recreate"}}}


def test_strategic_patch_merges_and_deletes_plain_values() -> None:
    target = {"metadata": {"finalizers": ["a", "b"]}}
    added = strategic_patch(target, {"metadata": {"finalizers": ["b", "c"]}}, POD)
    assert added == {"metadata": {"finalizers": ["a", "b", "c"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert strategic_patch(target, patch, POD) == {"metadata": {"finalizers": ["b"]}}


def test_strategic_patch_needs_the_key() -> None:
    with pytest.raises(ApiError, match="does not contain declared merge key: name"):
        strategic_patch(pod(), pod({"image": "x"}), POD)
