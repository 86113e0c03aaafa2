"""Questions about the caller. Local mode has one user who may do everything, and says so.

RBAC is not enforced here: whoever holds the token of this server can start processes on this
machine as its user anyway.
"""

from .resources import (
    SELF_SUBJECT_ACCESS_REVIEWS,
    SELF_SUBJECT_REVIEWS,
    SELF_SUBJECT_RULES_REVIEWS,
    Object,
    Resource,
)

USER = "octavo-local"
_EVERYTHING = ["*"]


def answer_review(resource: Resource, question: Object) -> Object:
    status: dict[Resource, Object] = {
        SELF_SUBJECT_ACCESS_REVIEWS: {
            "allowed": True,
            "reason": "local mode has one user, who may do everything",
        },
        SELF_SUBJECT_RULES_REVIEWS: {
            "resourceRules": [
                {"verbs": _EVERYTHING, "apiGroups": _EVERYTHING, "resources": _EVERYTHING}
            ],
            "nonResourceRules": [{"verbs": _EVERYTHING, "nonResourceURLs": _EVERYTHING}],
            "incomplete": False,
        },
        SELF_SUBJECT_REVIEWS: {
            "userInfo": {"username": USER, "groups": ["system:masters", "system:authenticated"]}
        },
    }
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"creationTimestamp": None},
        "spec": question.get("spec") or {},
        "status": status[resource],
    }
