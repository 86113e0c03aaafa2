"""Tables of what is seen and what follows; the cluster is played by `settle`."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from octavo_operator.core.names import LABEL_REVISION
from octavo_operator.core.observed import Observed
from octavo_operator.core.obstacles import explain_refused_write
from octavo_operator.core.plan import CHECK_MOVING_S, CHECK_STEADY_S, Plan, make_plan
from octavo_operator.core.render.deployment import ImageSource
from support.inference import POD_SINCE, condition, make_object, make_pod, running, terminated

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 11, 1, 13, tzinfo=UTC)
IMAGES = ImageSource(registry="", version="1.0")
ON_GPU = {"limits": {"nvidia.com/gpu": 1}}


def plan_for(observed: Observed) -> Plan:
    return make_plan(observed, NOW, IMAGES)


def settle(observed: Observed, plan: Plan) -> Observed:
    """What is seen after a plan was carried out; defaults and empty values as the API has them."""
    live = {(item["kind"], item["metadata"]["name"]): item for item in observed.children()}
    for manifest in plan.apply:
        stored: dict[str, Any] = deepcopy(dict(manifest))
        stored["metadata"]["uid"] = "uid"
        stored["spec"]["sessionAffinity"] = "None"
        live[manifest["kind"], manifest["metadata"]["name"]] = stored
    for child in plan.delete:
        del live[child["kind"], child["metadata"]["name"]]
    return replace(
        observed,
        service={**observed.service, "status": dict(plan.status)},
        deployments=[item for item in live.values() if item["kind"] == "Deployment"],
        services=[item for item in live.values() if item["kind"] == "Service"],
    )


def revision(observed: Observed) -> str:
    (deployment,) = observed.deployments
    return str(deployment["spec"]["template"]["metadata"]["labels"][LABEL_REVISION])


def settled(**spec: Any) -> Observed:
    observed = Observed(service=make_object(**spec))
    return settle(observed, plan_for(observed))


def with_pods(observed: Observed, *pods: dict[str, Any]) -> Observed:
    return replace(observed, pods=pods)


def serving(pods: int = 1, **spec: Any) -> Observed:
    """All replicas ready, the status written, nothing left to do."""
    observed = settled(**spec)
    made = [make_pod(f"p{n}", revision=revision(observed), ready=True) for n in range(pods)]
    observed = with_pods(observed, *made)
    return settle(observed, plan_for(observed))


def changed(observed: Observed, **spec: Any) -> Observed:
    """The user has changed the spec."""
    return replace(
        observed,
        service=make_object(generation=2, **spec) | {"status": observed.service["status"]},
    )


def names(manifests: Sequence[Any]) -> list[tuple[str, str]]:
    return [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]


def test_a_new_service_gets_its_children_and_a_status_that_says_what_is_next() -> None:
    plan = plan_for(Observed(service=make_object()))
    assert names(plan.apply) == [
        ("Deployment", "chat"),
        ("Service", "chat"),
        ("Service", "chat-engines"),
    ]
    assert plan.delete == []
    assert plan.status["observedGeneration"] == 1
    assert plan.status["readyOfDesired"] == "0/1"
    assert plan.status["url"] == "http://chat.team.svc"
    assert plan.status["modelName"] == "chat"
    ready = condition(plan.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "CreatingPods")
    assert condition(plan.status, "Progressing")["status"] == "True"
    assert condition(plan.status, "Planned")["status"] == "True"
    assert [event.reason for event in plan.events] == ["Planned"]


def test_a_settled_service_is_left_alone() -> None:
    observed = serving()
    plan = make_plan(observed, LATER, IMAGES)
    assert (plan.apply, plan.delete, plan.events) == ([], [], [])
    assert plan.status == observed.service["status"]


def test_ready_when_every_pod_of_the_current_spec_is() -> None:
    observed = serving(pods=2, replicas=2)
    status = observed.service["status"]
    ready, progressing = condition(status, "Ready"), condition(status, "Progressing")
    assert (ready["status"], ready["reason"]) == ("True", "Serving")
    assert (progressing["status"], progressing["reason"]) == ("False", "Complete")
    assert (status["replicas"], status["readyOfDesired"]) == (2, "2/2")
    assert "nextAction" not in ready


def test_becoming_ready_is_an_event_and_loading_is_none() -> None:
    observed = settled()
    loading = plan_for(with_pods(observed, make_pod(revision=revision(observed))))
    assert condition(loading.status, "Ready")["reason"] == "StartingPod"
    assert loading.events == []
    pod = make_pod(revision=revision(observed), ready=True)
    (event,) = plan_for(with_pods(observed, pod)).events
    assert (event.type, event.reason) == ("Normal", "Serving")


def test_some_of_several_replicas_serve_degraded_with_the_reason() -> None:
    observed = settled(replicas=2)
    stuck = make_pod("b", revision=revision(observed), unschedulable="0/1 nodes available")
    plan = plan_for(
        with_pods(observed, make_pod("a", revision=revision(observed), ready=True), stuck)
    )
    ready = condition(plan.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Degraded")
    assert "0/1 nodes available" in ready["message"]
    assert ready["nextAction"]


def test_old_pods_that_serve_are_told_apart_from_new_ones() -> None:
    """P4."""
    observed = changed(serving(), engine={"maxNumSeqs": 4})
    plan = plan_for(observed)
    assert names(plan.apply) == [("Deployment", "chat")]
    ready, progressing = condition(plan.status, "Ready"), condition(plan.status, "Progressing")
    assert (ready["status"], ready["reason"]) == ("True", "ServingPreviousRevision")
    assert (progressing["status"], progressing["reason"]) == ("True", "RollingUpdate")
    assert plan.status["readyReplicas"] == 1
    assert plan.status["updatedReadyReplicas"] == 0
    assert plan.status["observedGeneration"] == 2


def test_a_single_gpu_replica_is_recreated_and_says_so_until_it_serves() -> None:
    """P1."""
    observed = changed(serving(resources=ON_GPU), resources=ON_GPU, engine={"maxNumSeqs": 4})
    plan = plan_for(observed)
    assert plan.apply[0]["spec"]["strategy"] == {"type": "Recreate"}
    assert condition(plan.status, "Progressing")["reason"] == "RecreateNoSpareAccelerator"

    between = with_pods(settle(observed, plan))
    plan = plan_for(between)
    assert condition(plan.status, "Progressing")["reason"] == "RecreateNoSpareAccelerator"
    assert condition(plan.status, "Ready")["status"] == "False"

    after = with_pods(settle(between, plan), make_pod(revision=revision(between), ready=True))
    assert condition(plan_for(after).status, "Progressing")["reason"] == "Complete"


@pytest.mark.parametrize(
    ("spec", "strategy"),
    [
        ({}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        ({"resources": ON_GPU}, {"type": "Recreate"}),
        (
            {"resources": ON_GPU, "replicas": 2},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        ),
    ],
)
def test_surge_only_where_a_spare_place_is_likely(
    spec: dict[str, Any], strategy: dict[str, Any]
) -> None:
    (deployment,) = settled(**spec).deployments
    assert deployment["spec"]["strategy"] == strategy


def rolling_without_room(now: datetime, new: dict[str, Any]) -> tuple[Observed, Plan]:
    """A CPU service whose new pod finds no node, while the old one of 1 CPU serves."""
    observed = changed(serving(), engine={"maxNumSeqs": 4})
    observed = settle(observed, plan_for(observed))
    old = make_pod("old", revision="old", ready=True, resources={"requests": {"cpu": "1"}})
    pending = make_pod(
        "new", revision=revision(observed), unschedulable="Insufficient cpu", resources=new
    )
    observed = with_pods(observed, old, pending)
    return observed, make_plan(observed, now, IMAGES)


SINCE = datetime.fromisoformat(POD_SINCE)
SAME = {"limits": {"cpu": "1000m"}}


def test_an_old_pod_makes_room_for_a_new_one_that_waits_for_it() -> None:
    observed, plan = rolling_without_room(SINCE + timedelta(seconds=30), SAME)
    assert names(plan.apply) == [("Deployment", "chat")]
    assert plan.apply[0]["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 0,
        "maxUnavailable": 1,
    }
    assert condition(plan.status, "Progressing")["reason"] == "RollingUpdateWithoutSurge"

    # It stays so until the old pod is gone, and then returns to surging.
    observed = settle(observed, plan)
    going = make_pod("old", revision="old", deletionTimestamp="2026-11-01T10:01:00Z")
    observed = with_pods(observed, going, make_pod("new", revision=revision(observed)))
    plan = plan_for(observed)
    assert plan.apply == []
    observed = settle(observed, plan)
    observed = with_pods(observed, make_pod("new", revision=revision(observed), ready=True))
    plan = plan_for(observed)
    assert plan.apply[0]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
    assert condition(plan.status, "Ready")["reason"] == "Serving"


@pytest.mark.parametrize(
    ("after_s", "new"),
    [(29, SAME), (3600, {"requests": {"cpu": "1001m"}}), (3600, {"limits": {"memory": "1Gi"}})],
)
def test_no_old_pod_goes_too_early_or_for_one_that_asks_for_more(
    after_s: int, new: dict[str, Any]
) -> None:
    _, plan = rolling_without_room(SINCE + timedelta(seconds=after_s), new)
    assert plan.apply == []
    ready = condition(plan.status, "Ready")
    assert ready["reason"] == "ServingPreviousRevision"
    assert "Insufficient cpu" in ready["message"]


def test_scaling_changes_no_pod_template() -> None:
    before = serving()
    plan = plan_for(changed(before, replicas=3))
    after = settle(before, plan)
    assert revision(after) == revision(before)
    assert after.deployments[0]["spec"]["replicas"] == 3
    assert condition(plan.status, "Ready")["reason"] == "Degraded"
    assert condition(plan.status, "Progressing")["reason"] == "StartingReplicas"


def test_no_replicas_are_not_ready_and_say_how_to_wake_them() -> None:
    observed = settled(replicas=0)
    ready = condition(observed.service["status"], "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ScaledToZero")
    assert "replicas" in ready["nextAction"]
    assert condition(observed.service["status"], "Progressing")["reason"] == "Complete"


def test_a_refused_spec_makes_nothing() -> None:
    plan = plan_for(Observed(service=make_object(engine={"parallelism": {"tensor": 2}})))
    assert plan.apply == plan.delete == ()
    for kind in ("Ready", "Planned"):
        found = condition(plan.status, kind)
        assert (found["status"], found["reason"]) == ("False", "ParallelismNotSupported")
        assert found["nextAction"]
    assert [(event.type, event.reason) for event in plan.events] == [
        ("Warning", "ParallelismNotSupported")
    ]


def test_a_refused_change_leaves_what_runs_and_says_so() -> None:
    plan = plan_for(changed(serving(), engine={"parallelism": {"tensor": 2}}))
    assert plan.apply == plan.delete == ()
    ready = condition(plan.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "ServingPreviousRevision")
    assert "ParallelismNotSupported" in ready["message"]
    assert condition(plan.status, "Planned")["reason"] == "ParallelismNotSupported"
    assert plan.status["readyReplicas"] == 1


@pytest.mark.parametrize(
    "spec", [{"engine": {"parallelism": {"tensor": 2}}}, {"engine": {"maxNumSeqs": 0}}]
)
def test_a_refused_spec_is_looked_at_again_only_as_a_guard(spec: dict[str, Any]) -> None:
    assert plan_for(Observed(service=make_object(**spec))).check_after_s == CHECK_STEADY_S


def test_an_unknown_field_is_refused_by_name() -> None:
    plan = plan_for(Observed(service=make_object(routing={"mode": "x"})))
    assert "spec.routing" in condition(plan.status, "Planned")["message"]
    assert "modelName" not in plan.status


def test_a_start_up_failure_of_the_engine_becomes_the_reason() -> None:
    failure = (
        '{"reason": "ModelNotFound", "message": "There is no /m.gguf.", "next_action": "Name one."}'
    )
    observed = settled()
    pod = make_pod(revision=revision(observed), container={"state": terminated(78, failure)})
    plan = plan_for(with_pods(observed, pod))
    ready = condition(plan.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ModelNotFound")
    assert (ready["message"], ready["nextAction"]) == ("There is no /m.gguf.", "Name one.")
    assert [(event.type, event.reason) for event in plan.events] == [("Warning", "ModelNotFound")]


def test_the_reason_stays_while_the_engine_is_tried_again() -> None:
    observed = settled()
    failure = '{"reason": "ModelNotFound", "message": "m", "next_action": "n"}'
    stopped = make_pod(revision=revision(observed), container={"state": terminated(78, failure)})
    observed = with_pods(observed, stopped)
    observed = settle(observed, plan_for(observed))
    again = make_pod(
        revision=revision(observed), container={**running(), "lastState": terminated(78, failure)}
    )
    plan = plan_for(with_pods(observed, again))
    assert plan.status == observed.service["status"]
    assert plan.events == []


def test_the_deadline_ends_the_progress() -> None:
    """P4."""
    observed = changed(serving(), engine={"maxNumSeqs": 4})
    observed = settle(observed, plan_for(observed))
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    (deployment,) = observed.deployments
    deployment = {**deployment, "status": {"conditions": [late], "observedGeneration": 1}}
    deployment["metadata"] = {**deployment["metadata"], "generation": 1}
    plan = plan_for(replace(observed, deployments=[deployment]))
    progressing = condition(plan.status, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")
    assert progressing["nextAction"]

    deployment["metadata"]["generation"] = 2  # the verdict is on an older template
    plan = plan_for(replace(observed, deployments=[deployment]))
    assert condition(plan.status, "Progressing")["status"] == "True"


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_an_object_of_somebody_else_is_never_overwritten(kind: str) -> None:
    other = {"kind": kind, "metadata": {"name": "chat", "namespace": "team", "labels": {"a": "b"}}}
    observed = Observed(
        service=make_object(),
        deployments=[other] if kind == "Deployment" else [],
        services=[other] if kind == "Service" else [],
    )
    plan = plan_for(observed)
    assert plan.apply == ()
    assert condition(plan.status, "Ready")["reason"] == "NameTaken"
    assert plan.check_after_s < CHECK_MOVING_S  # it is not watched
    assert f"{kind} chat" in condition(plan.status, "Ready")["message"]


def test_children_of_a_deleted_namesake_are_waited_for() -> None:
    observed = settled()
    reborn = make_object()
    reborn["metadata"]["uid"] = "another"
    plan = plan_for(replace(observed, service=reborn))
    assert plan.apply == ()
    assert condition(plan.status, "Ready")["reason"] == "WaitingForDeletion"


def test_orphans_of_ours_are_adopted() -> None:
    observed = settled()
    orphans = [
        {**item, "metadata": {**item["metadata"], "ownerReferences": []}}
        for item in observed.deployments
    ]
    plan = plan_for(replace(observed, deployments=orphans))
    assert names(plan.apply) == [("Deployment", "chat")]


def test_a_child_that_is_wanted_no_more_is_deleted() -> None:
    observed = settled()
    extra = deepcopy(dict(observed.services[0]))
    extra["metadata"]["name"] = "chat-old"
    plan = plan_for(replace(observed, services=[*observed.services, extra]))
    assert names(plan.delete) == [("Service", "chat-old")]


def test_what_the_cluster_refuses_is_told() -> None:
    obstacle = explain_refused_write(403, "deployments is forbidden: exceeded quota: q")
    plan = make_plan(Observed(service=make_object()), NOW, IMAGES, obstacle)
    ready = condition(plan.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "QuotaExceeded")
    assert condition(plan.status, "Progressing")["reason"] == "QuotaExceeded"
    assert condition(plan.status, "Planned")["status"] == "True"


def test_every_state_that_is_not_well_says_what_to_do() -> None:
    observed = settled()
    states = [
        Observed(service=make_object()),
        with_pods(observed, make_pod(revision=revision(observed))),
        with_pods(observed, make_pod(revision=revision(observed), unschedulable="no")),
        changed(serving(), engine={"maxNumSeqs": 4}),
        changed(serving(), engine={"maxNumSeqs": 0}),
        Observed(service=make_object(replicas=0)),
    ]
    for state in states:
        ready = condition(plan_for(state).status, "Ready")
        assert ready["status"] == "False" or ready["reason"] == "ServingPreviousRevision"
        assert ready["reason"]
        assert ready["message"]
        assert ready["nextAction"]
