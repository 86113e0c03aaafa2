"""Whatever is seen: a plan comes out, it says what is wrong, and carried out it is done."""

from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.core.names import LABEL_REVISION
from octavo_operator.core.observed import Observed
from octavo_operator.core.plan import Plan, make_plan
from octavo_operator.core.render.deployment import ImageSource
from support.inference import condition, make_object, make_pod, running, terminated, waiting

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
IMAGES = ImageSource(registry="", version="1")

texts = st.text(max_size=20)
containers = st.one_of(
    st.none(),
    st.just(running()),
    st.builds(waiting, st.sampled_from(["CrashLoopBackOff", "ErrImagePull", "Other"]), texts),
    st.builds(
        lambda code, text: {"state": terminated(code, text)},
        st.sampled_from([0, 1, 78, 137]),
        texts,
    ),
    st.builds(
        lambda code, text: {**running(), "lastState": terminated(code, text), "restartCount": 2},
        st.sampled_from([1, 78, 137]),
        texts,
    ),
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(-1, 4),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "maxNumSeqs": st.integers(0, 4097),
                "parallelism": st.fixed_dictionaries({"tensor": st.integers(1, 2)}),
            },
        ),
        "resources": st.sampled_from(
            [
                {},
                {"limits": {"nvidia.com/gpu": 1}},
                {"limits": {"nvidia.com/gpu": 2}},
                {"requests": {"memory": "1Mi"}},
                {"limits": {"memory": "1 GB"}},
            ]
        ),
        "other": st.just(1),
    },
)


@st.composite
def seen(draw: st.DrawFn) -> Observed:
    """A service at its second generation, with children and pods of the first, or of the second."""
    first, second = draw(specs), draw(specs)
    observed = Observed(service=make_object(**first))
    if draw(st.booleans()):
        observed = carry_out(observed, make_plan(observed, NOW, IMAGES))
    status = observed.service.get("status")
    observed = replace(observed, service=make_object(generation=2, status=status, **second))
    if draw(st.booleans()):
        observed = carry_out(observed, make_plan(observed, NOW, IMAGES))
    revisions = ["old"] + [
        deployment["spec"]["template"]["metadata"]["labels"][LABEL_REVISION]
        for deployment in observed.deployments
    ]
    pods = [
        make_pod(
            f"p{number}",
            revision=draw(st.sampled_from(revisions)),
            ready=draw(st.booleans()),
            container=draw(containers),
            unschedulable=draw(st.sampled_from(["", "0/1 nodes are available"])),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    return replace(observed, pods=pods)


def carry_out(observed: Observed, plan: Plan) -> Observed:
    live: dict[tuple[str, str], Any] = {
        (item["kind"], item["metadata"]["name"]): item for item in observed.children()
    }
    for manifest in plan.apply:
        live[manifest["kind"], manifest["metadata"]["name"]] = deepcopy(manifest)
    return replace(
        observed,
        service={**observed.service, "status": deepcopy(plan.status)},
        deployments=[item for (kind, _), item in live.items() if kind == "Deployment"],
        services=[item for (kind, _), item in live.items() if kind == "Service"],
    )


@given(observed=seen())
@settings(max_examples=150, deadline=None)
def test_a_plan_that_is_carried_out_leaves_nothing_to_do(observed: Observed) -> None:
    for _ in range(3):  # what was just written may change what a roll-out is called, once
        plan = make_plan(observed, NOW, IMAGES)
        observed = carry_out(observed, plan)
    again = make_plan(observed, NOW, IMAGES)
    assert (list(again.apply), list(again.delete), list(again.events)) == ([], [], [])
    assert again.status == observed.service["status"]


@given(observed=seen())
@settings(max_examples=150, deadline=None)
def test_every_status_is_whole_and_says_what_to_do(observed: Observed) -> None:
    plan = make_plan(observed, NOW, IMAGES)
    ready, planned = condition(plan.status, "Ready"), condition(plan.status, "Planned")
    for found in (ready, planned, condition(plan.status, "Progressing")):
        assert found["reason"].isalnum()
        assert found["message"]
        assert found["observedGeneration"] == 2
    if ready["status"] != "True":
        assert ready["nextAction"]
    if planned["status"] != "True":
        assert planned["nextAction"]
        assert plan.apply == ()
        assert ready["status"] == "False" or ready["reason"] == "ServingPreviousRevision"
    if ready["status"] == "True":
        counted = "updatedReadyReplicas"
        if ready["reason"] == "ServingPreviousRevision":
            assert ready["nextAction"]
            counted = "readyReplicas"
        assert plan.status[counted] >= 1
    assert plan.check_after_s > 0
