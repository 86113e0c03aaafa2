"""What it means to a user when the cluster refuses what was planned."""

from octavo_operator.core.diagnose import Diagnosis

FORBIDDEN = 403


def explain_refused_write(status: int, message: str) -> Diagnosis | None:
    """A reason for the conditions; None when trying again is all there is to do."""
    if status == FORBIDDEN and "exceeded quota" in message:
        return Diagnosis(
            reason="QuotaExceeded",
            message=f"A quota of the namespace is used up: {message}",
            next_action="Raise the ResourceQuota, or delete what is not needed.",
            failing=True,
        )
    if status == FORBIDDEN and "because it is being terminated" in message:
        return Diagnosis(
            reason="NamespaceTerminating",
            message=f"The namespace is being deleted, and this service with it: {message}",
            next_action="Wait; to serve on, create the service in another namespace.",
            failing=True,
        )
    if status == FORBIDDEN:
        return Diagnosis(
            reason="Forbidden",
            message=f"The operator may not do what is needed: {message}",
            next_action="Install the operator's current RBAC rules, or change the policy that the "
            "message names.",
            failing=True,
        )
    if status in (400, 422):
        return Diagnosis(
            reason="RejectedByCluster",
            message=f"The cluster rejects what the spec leads to: {message}",
            next_action="Change the field of the spec that the message points to.",
            failing=True,
        )
    return None
