"""Roll-outs: whole ones are played against a model of ReplicaSets; single decisions by table."""

from copy import deepcopy
from typing import Any

import pytest

from octavo_local.controllers.deployments import (
    REVISION,
    DeploymentPlan,
    decide_deployment,
)
from octavo_local.objects import condition_of, name_of

NOW = 1_800_000_000.0


def make_deployment(replicas: int = 2, version: str = "1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "d", "namespace": "default", "uid": "u", "generation": 1},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x"}},
                "spec": {"containers": [{"name": "c", "image": f"x:{version}"}]},
            },
            **spec,
        },
    }


class World:
    """ReplicaSets whose pods become available at once, or never (`broken` images)."""

    def __init__(self, deployment: dict[str, Any], broken: tuple[str, ...] = ()) -> None:
        self.deployment = deployment
        self.broken = broken
        self.sets: dict[str, dict[str, Any]] = {}
        self.now = NOW
        self.least_available = 10**9
        self.most_pods = 0

    def step(self) -> DeploymentPlan:
        old_pods = sum(
            item["status"]["replicas"]
            for item in self.sets.values()
            if item["spec"]["template"]["spec"] != self.deployment["spec"]["template"]["spec"]
        )
        plan = decide_deployment(self.deployment, list(self.sets.values()), old_pods, self.now)
        if plan.create is not None:
            self.sets[name_of(plan.create)] = {**deepcopy(plan.create), "status": {"replicas": 0}}
        for name, size in plan.scale.items():
            self.sets[name]["spec"]["replicas"] = size
        for name in plan.delete:
            del self.sets[name]
        self.sets[plan.current]["metadata"]["annotations"][REVISION] = str(plan.revision)
        self.deployment["status"] = plan.status
        for item in self.sets.values():
            size = item["spec"]["replicas"]
            image = item["spec"]["template"]["spec"]["containers"][0]["image"]
            good = 0 if image in self.broken else size
            item["status"] = {"replicas": size, "readyReplicas": good, "availableReplicas": good}
        self.now += 1
        return plan

    def settle(self) -> None:
        for _ in range(40):
            before = deepcopy((self.sets, self.deployment["status"].get("replicas")))
            self.step()
            self.note()
            if before == (self.sets, self.deployment["status"].get("replicas")):
                return
        raise AssertionError("the roll-out does not settle")

    def note(self) -> None:
        counts = [item["status"] for item in self.sets.values()]
        self.least_available = min(
            self.least_available, sum(count["availableReplicas"] for count in counts)
        )
        self.most_pods = max(self.most_pods, sum(count["replicas"] for count in counts))

    def sizes(self) -> dict[str, int]:
        return {
            item["spec"]["template"]["spec"]["containers"][0]["image"]: item["spec"]["replicas"]
            for item in self.sets.values()
        }


def started(deployment: dict[str, Any], **kwargs: Any) -> World:
    world = World(deployment, **kwargs)
    world.step()
    world.settle()
    return world


def change_image(world: World, version: str) -> None:
    containers = world.deployment["spec"]["template"]["spec"]["containers"]
    containers[0]["image"] = f"x:{version}"
    world.deployment["metadata"]["generation"] += 1
    world.least_available, world.most_pods = 10**9, 0


def test_a_new_deployment_gets_one_replica_set_of_full_size() -> None:
    world = started(make_deployment(3))
    assert world.sizes() == {"x:1": 3}
    status = world.deployment["status"]
    assert status["availableReplicas"] == status["updatedReplicas"] == 3
    assert condition_of(world.deployment, "Available")["status"] == "True"
    assert condition_of(world.deployment, "Progressing")["reason"] == "NewReplicaSetAvailable"


@pytest.mark.parametrize(
    ("strategy", "replicas", "least_available", "most_pods"),
    [
        ({"maxSurge": 1, "maxUnavailable": 0}, 3, 3, 4),
        ({"maxSurge": 0, "maxUnavailable": 1}, 3, 2, 3),
        ({"maxSurge": "25%", "maxUnavailable": "25%"}, 4, 3, 5),
        ({"maxSurge": "100%", "maxUnavailable": "0%"}, 2, 2, 4),
        ({"maxSurge": "0%", "maxUnavailable": "10%"}, 2, 1, 2),
    ],
)
def test_a_rolling_update_keeps_its_bounds(
    strategy: dict[str, Any], replicas: int, least_available: int, most_pods: int
) -> None:
    deployment = make_deployment(
        replicas, strategy={"type": "RollingUpdate", "rollingUpdate": strategy}
    )
    world = started(deployment)
    change_image(world, "2")
    world.settle()
    assert world.sizes() == {"x:1": 0, "x:2": replicas}
    assert world.least_available >= least_available
    assert world.most_pods <= most_pods


def test_recreate_never_runs_old_and_new_together() -> None:
    world = started(make_deployment(2, strategy={"type": "Recreate"}))
    change_image(world, "2")
    world.settle()
    assert world.sizes() == {"x:1": 0, "x:2": 2}
    assert world.most_pods == 2
    assert world.least_available == 0


def test_recreate_waits_for_old_pods_that_are_still_ending() -> None:
    world = started(make_deployment(1, strategy={"type": "Recreate"}))
    change_image(world, "2")
    plan = decide_deployment(world.deployment, list(world.sets.values()), 1, NOW)
    assert plan.create is not None
    assert plan.create["spec"]["replicas"] == 0


def test_a_broken_update_leaves_the_old_pods_and_runs_into_its_deadline() -> None:
    rolling = {"maxSurge": 1, "maxUnavailable": 0}
    deployment = make_deployment(
        2,
        strategy={"type": "RollingUpdate", "rollingUpdate": rolling},
        progressDeadlineSeconds=30,
    )
    world = started(deployment, broken=("x:2",))
    change_image(world, "2")
    world.settle()
    assert world.sizes() == {"x:1": 2, "x:2": 1}
    progressing = condition_of(world.deployment, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("True", "ReplicaSetUpdated")
    world.now += 31
    world.step()
    progressing = condition_of(world.deployment, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")
    assert condition_of(world.deployment, "Available")["status"] == "True"


def test_the_wait_for_the_deadline_is_told_to_the_loop() -> None:
    world = World(make_deployment(1, progressDeadlineSeconds=30), broken=("x:1",))
    assert world.step().check_after_s == pytest.approx(30, abs=1)


def test_going_back_to_a_former_template_takes_its_replica_set_and_a_new_revision() -> None:
    world = started(make_deployment(1))
    for version in ("2", "1"):
        change_image(world, version)
        world.settle()
    assert world.sizes() == {"x:1": 1, "x:2": 0}
    revisions = {
        item["spec"]["template"]["spec"]["containers"][0]["image"]: item["metadata"]["annotations"][
            REVISION
        ]
        for item in world.sets.values()
    }
    assert revisions == {"x:1": "3", "x:2": "2"}


def test_old_replica_sets_go_beyond_the_history_limit() -> None:
    world = started(make_deployment(1, revisionHistoryLimit=1))
    for version in ("2", "3", "4"):
        change_image(world, version)
        world.settle()
    assert world.sizes() == {"x:3": 0, "x:4": 1}


def test_scaling_makes_no_new_replica_set() -> None:
    world = started(make_deployment(1))
    world.deployment["spec"]["replicas"] = 4
    world.settle()
    assert world.sizes() == {"x:1": 4}
    world.deployment["spec"]["replicas"] = 0
    world.settle()
    assert world.sizes() == {"x:1": 0}


def test_a_paused_deployment_rolls_nothing_out() -> None:
    world = started(make_deployment(2))
    world.deployment["spec"]["paused"] = True
    change_image(world, "2")
    plan = decide_deployment(world.deployment, list(world.sets.values()), 0, NOW)
    assert plan.create is None
    assert plan.scale == {}
    assert condition_of({"status": plan.status}, "Progressing")["reason"] == "DeploymentPaused"


def test_pods_lost_after_the_roll_out_do_not_make_it_unfinished() -> None:
    world = started(make_deployment(2), broken=())
    world.broken = ("x:1",)
    world.step()
    world.step()
    assert condition_of(world.deployment, "Progressing")["reason"] == "NewReplicaSetAvailable"
    assert condition_of(world.deployment, "Available")["status"] == "False"
    assert world.deployment["status"]["unavailableReplicas"] == 2
