"""The wheel that the images install: complete, and working before any dependency is there."""

import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
# Building fetches the build backend from the package index.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, REPOSITORY)
    assert built.returncode == 0, built.stderr
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment that holds the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    installed = run(
        *pip, "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel
    )
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


def test_is_named_after_the_version_for_every_python(wheel: Path) -> None:
    assert wheel.name == f"octavo-{VERSION}-py3-none-any.whl"


def test_carries_every_package_and_every_file_that_is_read_at_run_time(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        crd = archive.read("octavo_local/manifests/inferenceservices.yaml")
        operator = archive.read("octavo_local/manifests/operator.yaml")
    assert crd == (REPOSITORY / "crds" / "inferenceservices.yaml").read_bytes()
    manifests = REPOSITORY / "operator" / "octavo_local" / "manifests"
    assert operator == (manifests / "operator.yaml").read_bytes()
    for tower in ("engine", "operator"):
        for source in (REPOSITORY / tower).rglob("*.py"):
            assert str(source.relative_to(REPOSITORY / tower)) in names


def test_carries_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert all(top.startswith("octavo") for top in tops), tops
    assert f"octavo-{VERSION}.dist-info" in tops


def test_tells_its_version_and_its_commands_without_any_dependency(bare: Path) -> None:
    assert run(bare / "octavo", "--version").stdout == f"octavo {VERSION}\n"
    shown = run(bare / "octavo", "--help")
    assert shown.returncode == 0
    assert "serve" in shown.stdout


@pytest.mark.parametrize(
    ("command", "extra"), [("serve", "engine"), ("operator", "operator"), ("up", "local")]
)
def test_says_which_extra_a_command_needs(bare: Path, command: str, extra: str) -> None:
    result = run(bare / "octavo", command, "--no-such-flag")
    assert result.returncode == 2
    assert f"octavo[{extra}]" in result.stderr or "no-such-flag" in result.stderr
    assert "Traceback" not in result.stderr
