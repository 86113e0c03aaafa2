"""The store as controllers see it: versions, generations, defaults, deletion."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from octavo_local.apiserver.admission import WriteOptions
from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Object,
    Resource,
)
from octavo_local.apiserver.store import Store


class FakeClock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return Store(clock=clock, rng=random.Random(0))


def pod(name: str = "p", **spec: object) -> Object:
    containers = [{"name": "main", "image": "web:1"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def deployment(replicas: int = 1) -> Object:
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "web:1"}]},
            },
        },
    }


def config_map(name: str, *owners: Object) -> Object:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for owner in owners
    ]
    metadata: Object = {"name": name}
    if references:
        metadata["ownerReferences"] = references
    return {"metadata": metadata}


def names(store: Store, resource: Resource) -> list[str]:
    return [obj["metadata"]["name"] for obj in store.list(resource, "default")]


def test_what_is_returned_is_a_copy(store: Store) -> None:
    created = store.create(CONFIG_MAPS, "default", {**config_map("a"), "data": {"k": "v"}})
    created["data"]["k"] = "changed"
    found = store.get(CONFIG_MAPS, "default", "a")
    assert found["data"] == {"k": "v"}
    found["data"]["k"] = "changed"
    assert store.list(CONFIG_MAPS)[0]["data"] == {"k": "v"}


def test_a_new_object_gets_identity_and_defaults(store: Store) -> None:
    created = store.create(DEPLOYMENTS, "default", deployment())
    metadata = created["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert metadata["generation"] == 1
    assert len(metadata["uid"]) == 36
    assert created["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 30
    assert created["spec"]["progressDeadlineSeconds"] == 600


def test_a_generated_name_is_the_prefix_and_five_letters(store: Store) -> None:
    created = store.create(CONFIG_MAPS, "default", {"metadata": {"generateName": "a-"}})
    assert created["metadata"]["name"].startswith("a-")
    assert len(created["metadata"]["name"]) == 7


def test_generation_counts_changes_of_the_spec_only(store: Store) -> None:
    store.create(DEPLOYMENTS, "default", deployment())
    counted = {**deployment(), "status": {"replicas": 1}}
    store.update(DEPLOYMENTS, "default", "web", counted, "status")
    labelled = store.get(DEPLOYMENTS, "default", "web")
    labelled["metadata"]["labels"] = {"a": "b"}
    assert store.update(DEPLOYMENTS, "default", "web", labelled)["metadata"]["generation"] == 1
    scaled = store.update(DEPLOYMENTS, "default", "web", deployment(2))
    assert scaled["metadata"]["generation"] == 2
    assert scaled["status"] == {"replicas": 1}, "an update of the object leaves its status alone"


def test_an_update_of_the_status_leaves_the_spec_alone(store: Store) -> None:
    store.create(DEPLOYMENTS, "default", deployment(3))
    changed = {**deployment(9), "status": {"replicas": 3}}
    written = store.update(DEPLOYMENTS, "default", "web", changed, "status")
    assert written["spec"]["replicas"] == 3
    assert written["status"] == {"replicas": 3}


def test_an_old_version_loses(store: Store) -> None:
    old = store.create(CONFIG_MAPS, "default", config_map("a"))
    store.update(CONFIG_MAPS, "default", "a", {**config_map("a"), "data": {"k": "1"}})
    with pytest.raises(ApiError, match="the object has been modified"):
        store.update(CONFIG_MAPS, "default", "a", {**old, "data": {"k": "2"}})


def test_a_write_that_changes_nothing_is_no_event(store: Store) -> None:
    created = store.create(DEPLOYMENTS, "default", deployment())
    written = store.update(DEPLOYMENTS, "default", "web", deployment())
    assert written["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


def test_a_dry_run_leaves_no_trace(store: Store) -> None:
    shown = store.create(DEPLOYMENTS, "default", deployment(), WriteOptions(dry_run=True))
    assert shown["spec"]["strategy"]["type"] == "RollingUpdate"
    assert store.list(DEPLOYMENTS) == []


def test_kinds_that_nothing_acts_on_say_so(store: Store) -> None:
    options = WriteOptions()
    policy: Object = {"metadata": {"name": "a"}, "spec": {"podSelector": {}}}
    store.create(NETWORK_POLICIES, "default", policy, options)
    assert options.warnings == ["local mode keeps networkpolicies, but nothing here acts on them"]


@pytest.mark.parametrize(
    ("resource", "obj", "message"),
    [
        (PODS, pod("Upper"), "a lowercase RFC 1123 subdomain"),
        (PODS, pod(restartPolicy="Maybe"), 'Unsupported value: "Maybe"'),
        (PODS, {"metadata": {"name": "p"}, "spec": {}}, "spec.containers: Required value"),
        (PODS, {"metadata": {"name": "p"}}, "spec: Required value"),
        (PODS, pod(containerz=[]), 'unknown field "spec.containerz"'),
        (SERVICES, {"metadata": {"name": "s"}, "spec": {}}, "spec.ports: Required value"),
        (CONFIG_MAPS, {"metadata": {}}, "name or generateName is required"),
        (CONFIG_MAPS, {**config_map("a"), "data": {"k": 1}}, "must be of type string"),
        (CONFIG_MAPS, {**config_map("a"), "kind": "Secret"}, "does not match the expected kind"),
        (
            CONFIG_MAPS,
            {"metadata": {"name": "a", "namespace": "b"}},
            "does not match the namespace",
        ),
        (SECRETS, {**config_map("a"), "data": {"k": "plain?"}}, "must be base64"),
    ],
)
def test_wrong_objects_are_refused(
    store: Store, resource: Resource, obj: Object, message: str
) -> None:
    with pytest.raises(ApiError, match=message):
        store.create(resource, "default", obj)
    assert store.list(resource) == []


def test_more_gpus_than_the_limit_are_refused(store: Store) -> None:
    wanted = pod()
    wanted["spec"]["containers"][0]["resources"] = {
        "requests": {"memory": "2Gi"},
        "limits": {"memory": "1Gi"},
    }
    with pytest.raises(ApiError, match="must be less than or equal to memory limit of 1Gi"):
        store.create(PODS, "default", wanted)


def test_what_is_limited_is_requested(store: Store) -> None:
    wanted = pod()
    wanted["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    created = store.create(PODS, "default", wanted)
    resources = created["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"nvidia.com/gpu": 1}


def test_plain_text_of_a_secret_is_encoded(store: Store) -> None:
    secret = {**config_map("a"), "stringData": {"k": "plain"}}
    created = store.create(SECRETS, "default", secret)
    assert created["data"] == {"k": "cGxhaW4="}
    assert "stringData" not in created


def test_services_get_addresses_of_their_own_and_keep_them(store: Store) -> None:
    spec = {"ports": [{"port": 80}], "selector": {"a": "b"}}
    first = store.create(SERVICES, "default", {"metadata": {"name": "a"}, "spec": spec})
    second = store.create(SERVICES, "default", {"metadata": {"name": "b"}, "spec": spec})
    headless = {**spec, "clusterIP": "None"}
    third = store.create(SERVICES, "default", {"metadata": {"name": "c"}, "spec": headless})
    addresses = [one["spec"]["clusterIP"] for one in (first, second, third)]
    assert addresses == ["127.96.0.1", "127.96.0.2", "None"]
    replaced = store.update(SERVICES, "default", "b", {"metadata": {"name": "b"}, "spec": spec})
    assert replaced["spec"]["clusterIP"] == "127.96.0.2"


# --- deletion -----------------------------------------------------------------------------------


def bound(store: Store, **spec: object) -> Object:
    return store.create(PODS, "default", pod(nodeName="here", **spec))


def test_a_pod_without_a_node_goes_at_once(store: Store) -> None:
    store.create(PODS, "default", pod())
    store.delete(PODS, "default", "p")
    assert store.list(PODS) == []


def test_a_pod_on_a_node_waits_for_the_node(store: Store, clock: FakeClock) -> None:
    bound(store, terminationGracePeriodSeconds=7)
    marked = store.delete(PODS, "default", "p")["metadata"]
    assert marked["deletionTimestamp"] == "2026-01-01T00:00:07Z"
    assert marked["deletionGracePeriodSeconds"] == 7
    clock.now += timedelta(seconds=2)
    shorter = store.delete(PODS, "default", "p", grace_period_s=1)["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 1
    longer = store.delete(PODS, "default", "p", grace_period_s=50)["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 1, "a grace period is never made longer"
    store.delete(PODS, "default", "p", grace_period_s=0)
    assert store.list(PODS) == []


def test_a_pod_that_has_ended_goes_at_once(store: Store) -> None:
    bound(store)
    failed = store.get(PODS, "default", "p") | {"status": {"phase": "Failed"}}
    store.update(PODS, "default", "p", failed, "status")
    store.delete(PODS, "default", "p")
    assert store.list(PODS) == []


def test_a_finalizer_holds_an_object_until_it_is_taken_off(store: Store) -> None:
    held = config_map("a")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    store.create(CONFIG_MAPS, "default", held)
    marked = store.delete(CONFIG_MAPS, "default", "a")
    assert marked["metadata"]["deletionTimestamp"]
    marked["metadata"]["finalizers"] = []
    store.update(CONFIG_MAPS, "default", "a", marked)
    assert store.list(CONFIG_MAPS) == []


def test_dependents_follow_their_last_owner(store: Store) -> None:
    first = store.create(CONFIG_MAPS, "default", config_map("first"))
    second = store.create(CONFIG_MAPS, "default", config_map("second"))
    shared = store.create(CONFIG_MAPS, "default", config_map("shared", first, second))
    store.create(CONFIG_MAPS, "default", config_map("below", shared))
    store.delete(CONFIG_MAPS, "default", "first")
    assert names(store, CONFIG_MAPS) == ["below", "second", "shared"]
    store.delete(CONFIG_MAPS, "default", "second")
    assert names(store, CONFIG_MAPS) == []


def test_orphaned_dependents_stay(store: Store) -> None:
    owner = store.create(CONFIG_MAPS, "default", config_map("owner"))
    store.create(CONFIG_MAPS, "default", config_map("child", owner))
    store.delete(CONFIG_MAPS, "default", "owner", propagation="Orphan")
    assert names(store, CONFIG_MAPS) == ["child"]
    assert "ownerReferences" not in store.get(CONFIG_MAPS, "default", "child")["metadata"]


def test_a_foreground_deletion_waits_for_the_dependents(store: Store) -> None:
    owner = store.create(CONFIG_MAPS, "default", config_map("owner"))
    child = config_map("child", owner)
    child["metadata"]["finalizers"] = ["example.com/hold"]
    store.create(CONFIG_MAPS, "default", child)
    store.delete(CONFIG_MAPS, "default", "owner", propagation="Foreground")
    assert names(store, CONFIG_MAPS) == ["child", "owner"]
    held = store.get(CONFIG_MAPS, "default", "child")
    held["metadata"]["finalizers"] = []
    store.update(CONFIG_MAPS, "default", "child", held)
    assert names(store, CONFIG_MAPS) == []


def test_a_child_that_is_born_after_its_owner_is_gone_goes_too(store: Store) -> None:
    owner = store.create(CONFIG_MAPS, "default", config_map("owner"))
    store.delete(CONFIG_MAPS, "default", "owner")
    store.create(CONFIG_MAPS, "default", config_map("late", owner))
    assert names(store, CONFIG_MAPS) == []


def test_a_namespace_waits_for_its_content_and_takes_nothing_new(store: Store) -> None:
    store.create(NAMESPACES, None, {"metadata": {"name": "team"}})
    assert store.list(SERVICE_ACCOUNTS, "team")[0]["metadata"]["name"] == "default"
    store.create(PODS, "team", pod(nodeName="here"))
    store.delete(NAMESPACES, None, "team")
    assert store.get(NAMESPACES, None, "team")["status"]["phase"] == "Terminating"
    with pytest.raises(ApiError, match="it is being terminated"):
        store.create(CONFIG_MAPS, "team", config_map("late"))
    store.delete(PODS, "team", "p", grace_period_s=0)
    with pytest.raises(ApiError, match='namespaces "team" not found'):
        store.get(NAMESPACES, None, "team")


def test_the_default_namespace_stays(store: Store) -> None:
    with pytest.raises(ApiError, match="may not be deleted"):
        store.delete(NAMESPACES, None, "default")


def test_events_are_forgotten_after_an_hour(store: Store, clock: FakeClock) -> None:
    def event(name: str) -> Object:
        return {"metadata": {"name": name}, "involvedObject": {"name": "p"}, "reason": "Tried"}

    store.create(EVENTS, "default", event("old"))
    clock.now += timedelta(minutes=61)
    store.create(EVENTS, "default", event("new"))
    assert names(store, EVENTS) == ["new"]


# --- watches ------------------------------------------------------------------------------------


async def test_a_reader_that_lags_too_far_behind_is_told_to_start_again(store: Store) -> None:
    late = store.storage.subscribe(CONFIG_MAPS.table, max_lag=2)
    patient = store.storage.subscribe(CONFIG_MAPS.table)
    for name in "abc":
        store.create(CONFIG_MAPS, "default", config_map(name))
    with pytest.raises(ApiError, match="list again") as error:
        await late.next()
    assert error.value.code == 410
    store.create(CONFIG_MAPS, "default", config_map("d"))
    assert [(await patient.next()).obj["metadata"]["name"] for _ in "abcd"] == list("abcd")
