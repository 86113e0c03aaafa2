"""Real helm installs, upgrades and removes the chart, on the API of local mode."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api import Kubectl, running_api
from support.helm import CHART, helm

CRD = "inferenceservices.serving.octavo.dev"
NAMESPACE = "octavo-system"
SERVICE = """\
apiVersion: serving.octavo.dev/v1alpha1
kind: InferenceService
metadata:
  name: kept
spec:
  model:
    uri: file:///models/kept.gguf
"""


class Client:
    """Real helm and real kubectl against one API."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self.kubectl = Kubectl(kubeconfig=kubeconfig)

    def helm(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        return helm(*arguments, "--kubeconfig", self._kubeconfig, check=check)

    def get(self, *arguments: str) -> dict[str, Any] | None:
        """The object, or None when there is none."""
        shown = self.kubectl.run("get", *arguments, "-o", "json", "--ignore-not-found")
        return json.loads(shown) if shown.strip() else None

    def spec_fields(self) -> set[str]:
        """Fields of spec.engine that the installed CRD knows."""
        crd = self.get("crd", CRD)
        assert crd is not None
        (version,) = crd["spec"]["versions"]
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        return set(spec["engine"]["properties"])


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with running_api(tmp_path, install_crds=False) as running:
        yield Client(running.kubeconfig)


def older_chart(folder: Path) -> Path:
    """A copy of the chart, of an older version, whose CRD lacks spec.engine.dtype."""
    copy = folder / "octavo"
    shutil.copytree(CHART, copy)
    chart = yaml.safe_load((copy / "Chart.yaml").read_text())
    chart["version"] = chart["appVersion"] = "0.0.9"
    (copy / "Chart.yaml").write_text(yaml.safe_dump(chart))
    template = copy / "templates" / "crd.yaml"
    lines = template.read_text().splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if line.strip() == "dtype:")
    indent = len(lines[start]) - len(lines[start].lstrip())
    end = next(
        number
        for number, line in enumerate(lines[start + 1 :], start + 1)
        if len(line) - len(line.lstrip()) <= indent
    )
    template.write_text("".join(lines[:start] + lines[end:]))
    return copy


def test_installs_upgrades_and_goes_without_taking_anything_along(
    client: Client, tmp_path: Path
) -> None:
    install = ("install", "octavo", "--namespace", NAMESPACE)
    client.helm(*install, older_chart(tmp_path), "--create-namespace")
    assert "dtype" not in client.spec_fields()
    account = client.get("serviceaccount", "octavo-operator", "-n", NAMESPACE)
    assert account is not None
    assert account["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    client.kubectl.run("apply", "-f", "-", stdin=SERVICE)

    upgrade = ("upgrade", "octavo", CHART, "--namespace", NAMESPACE)
    client.helm(*upgrade, "--reset-then-reuse-values", "--set", "replicas=2")
    assert "dtype" in client.spec_fields(), "an upgrade brings the new CRD"
    deployment = client.get("deployment", "octavo-operator", "-n", NAMESPACE)
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 2
    history = json.loads(client.helm("history", "octavo", "-n", NAMESPACE, "-o", "json").stdout)
    assert [entry["status"] for entry in history] == ["superseded", "deployed"]

    client.helm("uninstall", "octavo", "--namespace", NAMESPACE)
    assert client.get("deployment", "octavo-operator", "-n", NAMESPACE) is None
    assert client.get("clusterrole", f"octavo-operator-{NAMESPACE}") is None
    assert client.get("crd", CRD) is not None, "uninstalling keeps the CRD"
    kept = client.get("inferenceservice", "kept")
    assert kept is not None, "and with it every InferenceService"
    assert not kept["metadata"].get("finalizers")

    client.helm(*install, CHART)
    assert client.get("inferenceservice", "kept") is not None


def test_a_crd_that_kubectl_installed_is_taken_over_only_when_asked_to(client: Client) -> None:
    crd = CHART.parents[1] / "crds" / "inferenceservices.yaml"
    client.kubectl.run("apply", "--server-side", "-f", str(crd))
    client.kubectl.run("apply", "-f", "-", stdin=SERVICE)
    install = ("install", "octavo", CHART, "--namespace", NAMESPACE, "--create-namespace")

    refused = client.helm(*install, check=False)
    assert refused.returncode != 0
    assert "invalid ownership metadata" in refused.stderr

    notes = client.helm(*install, "--take-ownership").stdout
    assert client.get("inferenceservice", "kept") is not None
    shown = notes.partition("<<MANIFEST\n")[2].partition("\nMANIFEST\n")[0]
    assert "created" in client.kubectl.run("apply", "-f", "-", stdin=shown)


def test_the_crd_can_be_left_to_somebody_else(client: Client) -> None:
    install = ("install", "octavo", CHART, "--namespace", NAMESPACE, "--create-namespace")
    notes = client.helm(*install, "--set", "crds.install=false").stdout
    assert "Upgrade it with every upgrade of\nthe chart" in notes
    assert client.get("crd", CRD) is None
    assert client.get("deployment", "octavo-operator", "-n", NAMESPACE) is not None
