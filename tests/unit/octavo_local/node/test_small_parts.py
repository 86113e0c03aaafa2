"""Back-off, images, addresses, verdicts of probes, the environment that a process starts with."""

from pathlib import Path
from typing import Any

import pytest

from octavo_local.node.addresses import AddressPool, NoAddressAvailable, check_bindable
from octavo_local.node.backoff import Backoff
from octavo_local.node.images import ImageNotAvailable, Images
from octavo_local.node.probes import Verdict, timing_of
from octavo_local.node.surroundings import make_base_environment

IMAGES = Images(version="1.2.3", python="/venv/bin/python", admitted=frozenset({"tool:1"}))


def test_the_wait_doubles_up_to_its_cap() -> None:
    backoff = Backoff(base_s=1, cap_s=60)
    waits = [backoff.wait_s(number) for number in range(9)]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.wait_s(10_000) == 60


def test_a_healthy_run_is_a_new_beginning() -> None:
    backoff = Backoff(healthy_s=60)
    assert backoff.count(5, ran_s=59) == 6
    assert backoff.count(5, ran_s=60) == 1


@pytest.mark.parametrize(
    ("image", "is_there"),
    [
        ("octavo-engine:1.2.3-cpu", True),
        ("octavo-engine:1.2.3", True),
        ("registry.example/team/octavo-operator:1.2.3", True),
        ("octavo-engine:9.9.9", False),
        ("octavo-engine", False),
        ("tool:1", True),
        ("other/tool:1", False),
        ("nginx", False),
    ],
)
def test_the_node_has_octavos_images_and_admitted_ones(image: str, is_there: bool) -> None:
    assert IMAGES.has(image) is is_there


def test_a_missing_image_is_told_with_what_there_is_and_how_to_admit_it() -> None:
    with pytest.raises(ImageNotAvailable, match=r"octavo-engine:1\.2\.3.*--image nginx"):
        IMAGES.require("nginx")


@pytest.mark.parametrize(
    ("image", "command", "args", "words"),
    [
        (
            "octavo-engine:1.2.3",
            [],
            ["serve"],
            ["/venv/bin/python", "-m", "octavo_cli.main", "serve"],
        ),
        (
            "octavo-engine:1.2.3",
            ["octavo", "serve"],
            ["m"],
            ["/venv/bin/python", "-m", "octavo_cli.main", "serve", "m"],
        ),
        ("tool:1", ["sh", "-c"], ["true"], ["sh", "-c", "true"]),
    ],
)
def test_words_to_execute(
    image: str, command: list[str], args: list[str], words: list[str]
) -> None:
    assert IMAGES.command_of({"name": "c", "image": image}, command, args) == words


def test_an_admitted_image_has_no_entry_point() -> None:
    with pytest.raises(ImageNotAvailable, match="give container 'c' a command"):
        IMAGES.command_of({"name": "c", "image": "tool:1"}, [], ["x"])


def test_addresses_are_different_loopback_ones_and_come_back() -> None:
    pool = AddressPool.claim()
    first, second = pool.take(), pool.take()
    assert first != second
    assert all(address.startswith("127.77.") for address in (first, second))
    pool.give_back(first)
    assert pool.take() not in (first, second)  # a freed one is not reused at once
    pool.close()


def test_two_clusters_never_share_an_address() -> None:
    first, second = AddressPool.claim(), AddressPool.claim()
    assert not first.network.overlaps(second.network)
    assert all(pool.network.is_loopback for pool in (first, second))
    first.close()
    second.close()


def test_a_network_can_run_out() -> None:
    pool = AddressPool.claim()
    taken = {pool.take() for _ in range(253)}
    assert len(taken) == 253
    with pytest.raises(NoAddressAvailable, match="are in use"):
        pool.take()
    pool.close()


def test_an_address_of_another_machine_cannot_be_had() -> None:
    with pytest.raises(NoAddressAvailable, match=r"192\.0\.2\.1"):
        check_bindable("192.0.2.1")


@pytest.mark.parametrize(
    ("tries", "thresholds", "passing"),
    [
        ("+", {}, True),
        ("+-", {}, True),
        ("+---", {}, False),
        ("+--+--", {}, True),
        ("---+", {}, True),
        ("++", {"successThreshold": 3}, False),
        ("+++", {"successThreshold": 3}, True),
        ("+-", {"failureThreshold": 1}, False),
    ],
)
def test_a_verdict_changes_after_enough_tries_in_a_row(
    tries: str, thresholds: dict[str, int], passing: bool
) -> None:
    verdict = Verdict(is_passing=False)
    for one in tries:
        verdict = verdict.after(one == "+", timing_of(thresholds))
    assert verdict.is_passing is passing


def environment(limits: dict[str, Any], **changes: Any) -> dict[str, str]:
    pod = {"metadata": {"name": "p"}, "spec": {}}
    container = {"resources": {"limits": limits}}
    return make_base_environment(
        pod,
        container,
        pod_ip="127.77.0.1",
        home=Path("/h"),
        message_file=Path("/m"),
        kubeconfig=changes.get("kubeconfig"),
    )


def test_a_process_learns_its_limits_and_nothing_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    env = environment({"memory": "3Gi", "cpu": "500m"})
    assert env["OCTAVO_HOST"] == "127.77.0.1"
    assert env["OCTAVO_MEMORY_LIMIT_BYTES"] == str(3 * 2**30)
    assert env["OCTAVO_CPU_LIMIT"] == "0.5"
    assert env["OCTAVO_TERMINATION_LOG"] == "/m"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "MY_API_KEY" not in env
    assert "KUBECONFIG" not in env


def test_a_pod_with_a_gpu_may_see_it_and_one_with_an_account_the_api() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environment({"nvidia.com/gpu": 1})
    assert environment({}, kubeconfig=Path("/k"))["KUBECONFIG"] == "/k"
