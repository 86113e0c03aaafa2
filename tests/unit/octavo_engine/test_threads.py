import sys

import pytest

from octavo_engine import threads


@pytest.mark.parametrize(
    ("limit", "count"), [(0.25, 1), (1.0, 1), (1.9, 1), (2.0, 2), (2.5, 2), (16, 16)]
)
def test_threads_are_whole_cores_and_at_least_one(limit: float, count: int) -> None:
    assert threads.thread_count(limit) == count


def test_the_libraries_get_one_pool_that_waits_passively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    env = {"OCTAVO_CPU_LIMIT": "1"}
    assert threads.configure_threads(env) == 1
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "1"
    assert env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert env["GOMP_SPINCOUNT"] == env["KMP_BLOCKTIME"] == "0"


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    env = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE"}
    threads.configure_threads(env)
    assert env["OMP_NUM_THREADS"] == "7"
    assert env["OMP_WAIT_POLICY"] == "ACTIVE"


def test_too_late_is_our_own_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())
    with pytest.raises(AssertionError, match="when it is imported"):
        threads.configure_threads({})
