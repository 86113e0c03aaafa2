"""From what was observed to what is to be done and said: the one place that decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from octavo_operator.api.spec import InferenceService, SpecError, parse_service
from octavo_operator.api.status import Condition, ConditionStatus, ConditionType, Status
from octavo_operator.core.checks import Refusal, find_refusal, refusal_of_spec
from octavo_operator.core.conditions import set_conditions
from octavo_operator.core.diagnose import Diagnosis
from octavo_operator.core.drift import has_drifted
from octavo_operator.core.explain import (
    explain_planned,
    explain_progressing,
    explain_ready,
    explain_refused,
)
from octavo_operator.core.names import (
    child_labels,
    deployment_name,
    format_selector,
    selector_labels,
    service_names,
    service_url,
)
from octavo_operator.core.observed import Manifest, Observed, is_owned_by
from octavo_operator.core.render.deployment import (
    WITHOUT_SURGE,
    ImageSource,
    choose_strategy,
    engine_image_of,
    make_deployment,
    make_engine_settings,
    revision_of,
)
from octavo_operator.core.render.services import make_services
from octavo_operator.core.rollout import Rollout, measure_rollout
from octavo_wire.names import KIND, LABEL_MANAGED_BY, LABEL_SERVICE

# Watches tell of changes; looking again guards against one that was missed.
CHECK_STEADY_S: Final = 300.0
CHECK_MOVING_S: Final = 15.0
# An object of somebody else that is in the way is not watched.
CHECK_TAKEN_NAME_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEvent:
    """A Kubernetes Event about the InferenceService."""

    type: str  # Normal or Warning
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, and what to say of it.

    `apply` holds whole manifests that differ from what is there; `delete` live children that are
    wanted no more; `status` the complete status; `check_after_s` when to look again at the latest.
    """

    apply: Sequence[Manifest]
    delete: Sequence[Manifest]
    status: Mapping[str, Any]
    events: Sequence[PlannedEvent]
    check_after_s: float


def make_plan(
    observed: Observed, now: datetime, images: ImageSource, obstacle: Diagnosis | None = None
) -> Plan:
    """The plan for one InferenceService; `obstacle` is why applying it was refused just now."""
    try:
        service = parse_service(observed.service)
    except SpecError as error:
        return _plan_refusal(observed, now, refusal_of_spec(error), None, CHECK_STEADY_S)
    if (refusal := find_refusal(service)) is not None:
        return _plan_refusal(observed, now, refusal, service, CHECK_STEADY_S)
    if (refusal := _find_taken_name(observed, service)) is not None:
        return _plan_refusal(observed, now, refusal, service, CHECK_TAKEN_NAME_S)

    strategy = choose_strategy(service)
    revision = revision_of(make_deployment(service, images, strategy))
    rollout = measure_rollout(observed, now, desired=service.spec.replicas, revision=revision)
    if _lacks_room(observed, rollout):
        strategy = choose_strategy(service, spare=False)
    wanted = [make_deployment(service, images, strategy), *make_services(service)]
    conditions = [
        explain_ready(rollout, obstacle),
        explain_progressing(
            rollout,
            strategy,
            rolling=rollout.old > 0 or _was_progressing_by(observed, strategy.reason),
            obstacle=obstacle,
        ),
        explain_planned(_describe(service, images)),
    ]
    troubled = obstacle is not None or (rollout.diagnosis is not None and rollout.diagnosis.failing)
    return Plan(
        apply=[manifest for manifest in wanted if _needs_applying(observed, manifest)],
        delete=_find_unwanted(observed, wanted),
        status=_make_status(observed, now, rollout, service, conditions),
        events=_make_events(observed, conditions, troubled=troubled),
        check_after_s=CHECK_STEADY_S if rollout.complete and not obstacle else CHECK_MOVING_S,
    )


def _plan_refusal(
    observed: Observed,
    now: datetime,
    refusal: Refusal,
    service: InferenceService | None,
    check_after_s: float,
) -> Plan:
    desired = service.spec.replicas if service is not None else 0
    rollout = measure_rollout(observed, now, desired=desired, revision=None)
    conditions = explain_refused(refusal, rollout)
    return Plan(
        apply=(),
        delete=(),
        status=_make_status(observed, now, rollout, service, conditions),
        events=_make_events(observed, conditions, troubled=True),
        check_after_s=check_after_s,
    )


def _find_taken_name(observed: Observed, service: InferenceService) -> Refusal | None:
    """Whether an object that is not ours bears the name of a child; it is never overwritten."""
    names = [("Deployment", deployment_name(service.name))]
    names += [("Service", name) for name in service_names(service.name)]
    for kind, name in names:
        live = observed.find(kind, name)
        if live is None or is_owned_by(live, service.uid):
            continue
        owners = [
            owner
            for owner in live["metadata"].get("ownerReferences") or []
            if owner.get("controller")
        ]
        if any(owner["kind"] == KIND and owner["name"] == service.name for owner in owners):
            return Refusal(
                reason="WaitingForDeletion",
                message=f"{kind} {name} belongs to an InferenceService of the same name that was "
                "deleted, and is about to be deleted as well.",
                next_action="Wait; if it stays, delete it.",
            )
        if not owners and _is_labelled(live, service.name):
            continue  # ours, left behind on purpose (--cascade=orphan): adopt it
        return Refusal(
            reason="NameTaken",
            message=f"There is a {kind} {name} already, which was not made for this "
            "InferenceService.",
            next_action=f"Delete that {kind}, or create the InferenceService under another name.",
        )
    return None


def _is_labelled(live: Manifest, service: str) -> bool:
    labels, ours = live["metadata"].get("labels") or {}, child_labels(service)
    return all(labels.get(key) == ours[key] for key in (LABEL_MANAGED_BY, LABEL_SERVICE))


def _needs_applying(observed: Observed, manifest: Manifest) -> bool:
    live = observed.find(manifest["kind"], manifest["metadata"]["name"])
    return live is None or has_drifted(manifest, live)


def _find_unwanted(observed: Observed, wanted: Sequence[Manifest]) -> list[Manifest]:
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    uid = observed.service["metadata"]["uid"]
    return [
        child
        for child in observed.children()
        if is_owned_by(child, uid)
        and (child["kind"], child["metadata"]["name"]) not in names
        and not child["metadata"].get("deletionTimestamp")
    ]


def _previous_conditions(observed: Observed) -> Sequence[Mapping[str, Any]]:
    return (observed.service.get("status") or {}).get("conditions") or []


def _was_progressing_by(observed: Observed, reason: str) -> bool:
    """Whether a roll-out was under way: with Recreate there is a time when no old pod is left."""
    return any(
        entry.get("type") == ConditionType.PROGRESSING
        and entry.get("status") == ConditionStatus.TRUE
        and entry.get("reason") == reason
        for entry in _previous_conditions(observed)
    )


def _lacks_room(observed: Observed, rollout: Rollout) -> bool:
    """Whether to roll without surge, until the roll-out that needed it is over."""
    if rollout.waits_for_old_pods:
        return True
    return rollout.old > 0 and _was_progressing_by(observed, WITHOUT_SURGE)


def _describe(service: InferenceService, images: ImageSource) -> str:
    replicas = service.spec.replicas
    place = f"{service.gpus} GPU" if service.gpus else "CPUs"
    text = (
        f"{replicas} replica{'s' if replicas != 1 else ''} of {engine_image_of(service, images)}, "
        f"each on {place}."
    )
    tokens = make_engine_settings(service)["max_num_batched_tokens"]
    if tokens is not None:
        text += f" A step takes up to {tokens} tokens, one for each of maxNumSeqs sequences."
    return text


def _make_status(
    observed: Observed,
    now: datetime,
    rollout: Rollout,
    service: InferenceService | None,
    conditions: Sequence[Condition],
) -> Mapping[str, Any]:
    meta = observed.service["metadata"]
    generation = int(meta.get("generation", 1))
    status = Status(
        observed_generation=generation,
        replicas=rollout.live,
        ready_replicas=rollout.ready,
        updated_ready_replicas=rollout.updated_ready,
        desired_replicas=rollout.desired,
        selector=format_selector(selector_labels(meta["name"])),
        model_name=service.spec.model.name if service is not None else None,
        url=service_url(meta["name"], meta["namespace"]),
        conditions=conditions,
    )
    rendered = set_conditions(
        _previous_conditions(observed), conditions, generation=generation, now=now
    )
    return status.to_api(rendered)


def _make_events(
    observed: Observed, conditions: Sequence[Condition], *, troubled: bool
) -> list[PlannedEvent]:
    """Events for what has changed and matters; waiting for a pod to load is no news."""
    generation = observed.service["metadata"].get("generation")
    before = {entry.get("type"): entry for entry in _previous_conditions(observed)}
    events = []
    for condition in conditions:
        previous = before.get(condition.type, {})
        changed = (previous.get("status"), previous.get("reason")) != (
            condition.status,
            condition.reason,
        )
        well = condition.status == ConditionStatus.TRUE and not condition.next_action
        if condition.type == ConditionType.PLANNED:
            changed = changed or previous.get("observedGeneration") != generation
        elif condition.type == ConditionType.READY:
            changed = changed and (well or troubled)
        else:
            changed = False
        if changed:
            message = " ".join(filter(None, (condition.message, condition.next_action)))
            events.append(
                PlannedEvent(
                    type="Normal" if well else "Warning", reason=condition.reason, message=message
                )
            )
    return list(dict.fromkeys(events))
