"""How far the pods are from what is wanted, in numbers."""

from dataclasses import dataclass
from datetime import datetime

from octavo_operator.core.diagnose import Diagnosis, diagnose
from octavo_operator.core.names import LABEL_REVISION, deployment_name
from octavo_operator.core.observed import Observed, condition_of, is_finished, is_live, is_ready
from octavo_operator.core.room import waits_for_old_pods

DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Pods by count. `updated` ones were made from the template that is wanted now."""

    desired: int
    live: int
    ready: int
    updated_ready: int
    old: int  # of another revision and not finished, those that are going included
    deadline_exceeded: bool
    waits_for_old_pods: bool
    diagnosis: Diagnosis | None  # of the updated pods

    @property
    def complete(self) -> bool:
        return self.old == 0 and self.live == self.desired == self.updated_ready


def measure_rollout(
    observed: Observed, now: datetime, *, desired: int, revision: str | None
) -> Rollout:
    """Count the pods; `revision` None means that none of them is of the current spec."""
    pods = sorted(observed.pods, key=lambda pod: str(pod["metadata"]["name"]))
    updated = [
        pod
        for pod in pods
        if revision is not None
        and (pod["metadata"].get("labels") or {}).get(LABEL_REVISION) == revision
    ]
    old = [pod for pod in pods if pod not in updated and not is_finished(pod)]
    deployment = observed.find("Deployment", deployment_name(observed.service["metadata"]["name"]))
    progress = condition_of(deployment, "Progressing") if deployment is not None else {}
    # A verdict on a template that has been replaced since says nothing of the new one.
    current = deployment is not None and (deployment.get("status") or {}).get(
        "observedGeneration", 0
    ) >= deployment["metadata"].get("generation", 0)
    return Rollout(
        desired=desired,
        live=sum(map(is_live, pods)),
        ready=sum(map(is_ready, pods)),
        updated_ready=sum(map(is_ready, updated)),
        old=len(old),
        deadline_exceeded=current
        and progress.get("status") == "False"
        and progress.get("reason") == DEADLINE_EXCEEDED,
        waits_for_old_pods=waits_for_old_pods(updated, old, now),
        diagnosis=diagnose(updated, deployment),
    )
