"""Where a pod goes, and what is said when it goes nowhere."""

from typing import Any

import pytest

from octavo_local.controllers.scheduler import decide_placement, needs_node

NODE = {
    "metadata": {"name": "local", "labels": {"disk": "fast", "gpus": "2"}},
    "spec": {},
    "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "2", "pods": "110"}},
}


def make_pod(name: str = "p", *, node: str | None = None, **spec: Any) -> dict[str, Any]:
    requests = spec.pop("requests", {})
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"resources": {"requests": requests}}],
            **({"nodeName": node} if node else {}),
            **spec,
        },
    }


def affinity(key: str, operator: str, *values: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


@pytest.mark.parametrize(
    ("case", "pod", "message"),
    [
        ("asks for nothing", make_pod(), None),
        ("fits exactly", make_pod(requests={"cpu": "2", "nvidia.com/gpu": "2"}), None),
        (
            "one GPU too many",
            make_pod(requests={"nvidia.com/gpu": "3"}),
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        ),
        (
            "two things lacking",
            make_pod(requests={"cpu": "3", "memory": "5Gi"}),
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.",
        ),
        (
            "a resource that the node has not heard of",
            make_pod(requests={"amd.com/gpu": "1"}),
            "0/1 nodes are available: 1 Insufficient amd.com/gpu.",
        ),
        ("the node's label", make_pod(nodeSelector={"disk": "fast"}), None),
        (
            "another label",
            make_pod(nodeSelector={"disk": "slow"}),
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
        ),
        ("affinity that holds", make_pod(affinity=affinity("gpus", "Gt", "1")), None),
        (
            "affinity that does not",
            make_pod(affinity=affinity("disk", "NotIn", "fast")),
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
        ),
    ],
)
def test_a_pod_is_placed_or_told_why_not(case: str, pod: dict[str, Any], message: str) -> None:
    placement = decide_placement(pod, [NODE], [])
    assert placement.message == (message or ""), case
    assert placement.node == (None if message else "local"), case


def test_what_other_pods_hold_is_taken_until_they_finish() -> None:
    holder = make_pod("holder", node="local", requests={"nvidia.com/gpu": "2"})
    pod = make_pod(requests={"nvidia.com/gpu": "1"})
    assert decide_placement(pod, [NODE], [holder]).node is None
    holder["status"] = {"phase": "Succeeded"}
    assert decide_placement(pod, [NODE], [holder]).node == "local"


def test_a_taint_keeps_pods_away_that_do_not_tolerate_it() -> None:
    node = {**NODE, "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}}
    assert "untolerated taint {gpu: }" in decide_placement(make_pod(), [node], []).message
    tolerant = make_pod(tolerations=[{"key": "gpu", "operator": "Exists"}])
    assert decide_placement(tolerant, [node], []).node == "local"


def test_without_nodes_the_message_says_so() -> None:
    assert decide_placement(make_pod(), [], []).message == "0/0 nodes are available."


def test_only_pods_without_a_node_wait_for_one() -> None:
    assert needs_node(make_pod())
    assert not needs_node(make_pod(node="local"))
    assert not needs_node(make_pod() | {"status": {"phase": "Failed"}})
