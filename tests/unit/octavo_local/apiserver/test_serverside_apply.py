"""Server-side apply: who owns what, who may change it, and what goes when nobody wants it."""

import random

import pytest

from octavo_local.apiserver.admission import WriteOptions
from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.resources import DEPLOYMENTS, SERVICES, Object
from octavo_local.apiserver.store import Store


@pytest.fixture
def store() -> Store:
    return Store(rng=random.Random(0))


def deployment(*containers: Object, **spec: object) -> Object:
    return {
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": list(containers) or [container()]},
            },
            **spec,
        },
    }


def container(name: str = "main", **fields: object) -> Object:
    return {"name": name, "image": f"{name}:1", **fields}


def apply(store: Store, wanted: Object, manager: str = "a", *, force: bool = False) -> Object:
    options = WriteOptions(manager=manager)
    return store.apply(DEPLOYMENTS, "default", "web", wanted, options, force=force)[0]


def containers(obj: Object) -> dict[str, Object]:
    return {one["name"]: one for one in obj["spec"]["template"]["spec"]["containers"]}


def managers(obj: Object) -> list[str]:
    return [entry["manager"] for entry in obj["metadata"]["managedFields"]]


def test_the_same_apply_twice_is_no_change(store: Store) -> None:
    first = apply(store, deployment(container(ports=[{"containerPort": 80}]), replicas=2))
    second = apply(store, deployment(container(ports=[{"containerPort": 80}]), replicas=2))
    assert second == first


def test_only_what_was_applied_is_owned(store: Store) -> None:
    applied = apply(store, deployment(replicas=2))
    (entry,) = applied["metadata"]["managedFields"]
    assert entry["operation"] == "Apply"
    assert entry["fieldsV1"]["f:spec"]["f:replicas"] == {}
    assert "f:strategy" not in entry["fieldsV1"]["f:spec"], "defaults belong to nobody"
    item = entry["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert item == {'k:{"name":"main"}': {".": {}, "f:image": {}, "f:name": {}}}


def test_what_is_applied_no_more_goes(store: Store) -> None:
    apply(store, deployment(container(), container("side", command=["x"]), replicas=2))
    after = apply(store, deployment())
    assert list(containers(after)) == ["main"]
    assert after["spec"]["replicas"] == 1, "the default is back"


def test_a_field_inside_a_kept_entry_goes(store: Store) -> None:
    apply(store, deployment(container(command=["x"], env=[{"name": "A", "value": "1"}])))
    after = apply(store, deployment(container()))
    assert "command" not in containers(after)["main"]
    assert "env" not in containers(after)["main"]


def test_an_entry_keeps_its_name_while_another_manager_has_a_part_of_it(store: Store) -> None:
    apply(store, deployment(container(), container("side", command=["x"])))
    apply(store, deployment(container("side", command=["x"])), "b")
    after = apply(store, deployment(container()))
    assert containers(after)["side"]["command"] == ["x"]


def test_managers_share_a_field_while_they_agree(store: Store) -> None:
    apply(store, deployment(replicas=2))
    both = apply(store, deployment(replicas=2), "b")
    assert sorted(managers(both)) == ["a", "b"]
    after = apply(store, deployment())
    assert after["spec"]["replicas"] == 2, "the other manager still wants it"


def test_a_conflict_names_field_and_owner(store: Store) -> None:
    apply(store, deployment(replicas=2))
    with pytest.raises(ApiError) as refusal:
        apply(store, deployment(replicas=3), "b")
    assert refusal.value.code == 409
    assert refusal.value.message == (
        'Apply failed with 1 conflict: conflict with "a" using apps/v1: .spec.replicas'
    )
    causes = refusal.value.status()["details"]["causes"]
    assert causes[0]["reason"] == "FieldManagerConflict"


def test_several_conflicts_are_listed(store: Store) -> None:
    apply(store, deployment(replicas=2))
    with pytest.raises(ApiError) as refusal:
        apply(store, deployment({"name": "main", "image": "other"}, replicas=3), "b")
    assert refusal.value.message == (
        'Apply failed with 2 conflicts: conflicts with "a" using apps/v1:\n'
        "- .spec.replicas\n"
        '- .spec.template.spec.containers[name="main"].image'
    )


def test_force_takes_the_field_over(store: Store) -> None:
    apply(store, deployment(replicas=2))
    assert apply(store, deployment(replicas=3), "b", force=True)["spec"]["replicas"] == 3
    with pytest.raises(ApiError, match='conflict with "b"'):
        apply(store, deployment(replicas=2))


def test_an_update_takes_a_field_and_apply_then_conflicts(store: Store) -> None:
    apply(store, deployment(replicas=2))
    scaled = store.get(DEPLOYMENTS, "default", "web")
    scaled["spec"]["replicas"] = 5
    options = WriteOptions(manager="scaler")
    store.update(DEPLOYMENTS, "default", "web", scaled, options=options)
    with pytest.raises(ApiError, match='conflict with "scaler" using apps/v1'):
        apply(store, deployment(replicas=2))
    assert apply(store, deployment())["spec"]["replicas"] == 5, "who does not ask, does not fight"


def test_managers_of_one_list_do_not_reorder_it_in_turns(store: Store) -> None:
    apply(store, deployment(container("a")))
    apply(store, deployment(container("b")), "b")
    once = apply(store, deployment(container("a")))
    assert apply(store, deployment(container("b")), "b") == once
    after = apply(store, deployment(container("new"), container("a")))
    assert list(containers(after)) == ["new", "b", "a"]
    assert apply(store, deployment(container("new"), container("a"))) == after


def test_ports_are_told_apart_by_port_and_protocol(store: Store) -> None:
    def service(*ports: Object) -> Object:
        return {"metadata": {"name": "s"}, "spec": {"ports": list(ports)}}

    options = WriteOptions(manager="a")
    tcp, udp = {"port": 53, "name": "t"}, {"port": 53, "protocol": "UDP", "name": "u"}
    store.apply(SERVICES, "default", "s", service(tcp, udp), options)
    after, _ = store.apply(SERVICES, "default", "s", service(udp), options)
    assert [port["name"] for port in after["spec"]["ports"]] == ["u"]


def test_managed_fields_may_not_be_applied(store: Store) -> None:
    wanted = deployment()
    wanted["metadata"]["managedFields"] = [{"manager": "x"}]
    with pytest.raises(ApiError, match="managedFields must be nil"):
        apply(store, wanted)


def test_the_status_is_not_applied_with_the_object(store: Store) -> None:
    applied = apply(store, {**deployment(), "status": {"replicas": 7}})
    assert "status" not in applied
    (entry,) = applied["metadata"]["managedFields"]
    assert "f:status" not in entry["fieldsV1"]
