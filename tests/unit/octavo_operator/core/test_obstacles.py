import pytest

from octavo_operator.core.obstacles import explain_refused_write

TERMINATING = (
    'deployments.apps "chat" is forbidden: unable to create new content in namespace team because '
    "it is being terminated"
)


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (403, TERMINATING, "NamespaceTerminating"),
        (403, 'pods "x" is forbidden: exceeded quota: q', "QuotaExceeded"),
        (403, 'deployments.apps is forbidden: User "u" cannot patch resource', "Forbidden"),
        (422, "Deployment.apps is invalid: spec", "RejectedByCluster"),
    ],
)
def test_a_refused_write_is_told_by_its_cause(status: int, message: str, reason: str) -> None:
    found = explain_refused_write(status, message)
    assert found is not None
    assert found.reason == reason
    assert message in found.message


@pytest.mark.parametrize("status", [0, 404, 409, 429, 500, 503])
def test_what_passes_by_itself_is_no_obstacle(status: int) -> None:
    assert explain_refused_write(status, "try later") is None
