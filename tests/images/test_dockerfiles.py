"""The images' recipes: what can be told without a container engine."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
IMAGES = ("operator", "engine-cpu", "engine-cuda")
EXTRAS = {"operator": ["operator"], "engine-cpu": ["engine"], "engine-cuda": ["engine", "gpu"]}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def instructions(image: str) -> list[tuple[str, str]]:
    """(INSTRUCTION, its text) of a Dockerfile, lines joined, comments left out."""
    text = (DOCKER / f"{image}.Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    pairs = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return [(name, rest) for name, rest in pairs]


def last_stage(image: str) -> list[tuple[str, str]]:
    steps = instructions(image)
    start = max(number for number, (name, _) in enumerate(steps) if name == "FROM")
    return steps[start:]


def value(image: str, instruction: str) -> str:
    (found,) = [text for name, text in last_stage(image) if name == instruction]
    return found


def environment(image: str) -> dict[str, str]:
    pairs = (pair.split("=", 1) for pair in value(image, "ENV").split())
    return dict(pairs)


def pins(name: str) -> dict[str, str]:
    lines = (DOCKER / f"constraints-{name}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def requirements(extras: list[str]) -> list[Requirement]:
    """The direct requirements of octavo[extras], its references to itself followed."""
    found: list[Requirement] = []
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == PROJECT["name"]:
                found += requirements(sorted(requirement.extras))
            else:
                found.append(requirement)
    return found


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    files = [str(DOCKER / f"{image}.Dockerfile") for image in IMAGES]
    result = subprocess.run([hadolint, *files], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("image", IMAGES)
def test_runs_octavo_as_nobody_in_particular(image: str) -> None:
    assert value(image, "USER") == "65532:65532"
    assert value(image, "ENTRYPOINT") == '["octavo"]'
    assert environment(image)["PYTHONUNBUFFERED"] == "1"
    assert environment(image)["PATH"].startswith("/opt/octavo/bin:")
    # Nothing runs as root after the user was chosen.
    names = [name for name, _ in last_stage(image)]
    assert "RUN" not in names[names.index("USER") :]


@pytest.mark.parametrize("image", IMAGES)
def test_listens_on_every_address_of_its_own(image: str) -> None:
    assert environment(image)["OCTAVO_HOST"] == "0.0.0.0"


def test_the_engine_images_compute_where_their_names_say() -> None:
    assert environment("engine-cpu")["OCTAVO_DEVICE"] == "cpu"
    assert environment("engine-cuda")["OCTAVO_DEVICE"] == "cuda"


def test_the_cuda_image_can_compile_kernels() -> None:
    assert environment("engine-cuda")["TRITON_CACHE_DIR"].startswith("/tmp/")
    assert "gcc" in " ".join(text for name, text in last_stage("engine-cuda") if name == "RUN")
    assert "compute" in environment("engine-cuda")["NVIDIA_DRIVER_CAPABILITIES"]
    # This would show every GPU of the node to pods that asked for none.
    assert "NVIDIA_VISIBLE_DEVICES" not in environment("engine-cuda")


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_but_the_environment_leaves_the_build_stage(image: str) -> None:
    copies = [text for name, text in last_stage(image) if name in ("COPY", "ADD")]
    assert copies == ["--from=build /opt/octavo /opt/octavo"]


@pytest.mark.parametrize("image", IMAGES)
def test_the_base_is_named_once_with_a_version(image: str) -> None:
    steps = instructions(image)
    assert steps[0] == ("ARG", "PYTHON_IMAGE=python:3.11-slim-bookworm")
    bases = [text.split()[0] for name, text in steps if name == "FROM"]
    assert bases == ["${PYTHON_IMAGE}"] * 2


@pytest.mark.parametrize("image", IMAGES)
def test_the_labels_tell_the_version(image: str) -> None:
    args = dict(text.split("=", 1) for name, text in last_stage(image) if name == "ARG")
    assert args["VERSION"] == PROJECT["version"]
    labels = value(image, "LABEL")
    assert 'org.opencontainers.image.version="${VERSION}"' in labels
    assert f'org.opencontainers.image.licenses="{PROJECT["license"]}"' in labels


@pytest.mark.parametrize("image", IMAGES)
def test_installs_no_more_than_its_extra_by_the_wheel_s_path(image: str) -> None:
    (text,) = [text for name, text in instructions(image) if "octavo[" in text and name == "RUN"]
    assert f'"octavo[{",".join(EXTRAS[image])}] @ file://' in text
    assert f"-c docker/constraints-{image}.txt" in text


@pytest.mark.parametrize("image", IMAGES)
def test_every_direct_requirement_is_pinned_to_a_version_that_it_admits(image: str) -> None:
    pinned = pins(image)
    for requirement in requirements(EXTRAS[image]):
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_the_build_backend_is_pinned_to_a_version_that_pyproject_admits() -> None:
    build_system = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]
    for text in build_system["requires"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins("build")[requirement.name])


def test_the_two_engine_images_differ_in_torch_s_build_only() -> None:
    cpu, cuda = pins("engine-cpu"), pins("engine-cuda")
    assert Version(cpu["torch"]).public == cuda["torch"]
    assert Version(cpu["torch"]).local == "cpu"
    common = cpu.keys() - {"torch"}
    assert {name: cpu[name] for name in common} == {name: cuda[name] for name in common}
    assert all(
        name.startswith(("nvidia-", "cuda-")) or name == "triton"
        for name in cuda.keys() - cpu.keys()
    )


def test_the_context_holds_what_the_recipes_copy_and_no_more() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    admitted = {line[1:] for line in lines if line.startswith("!")}
    for image in IMAGES:
        for name, text in instructions(image):
            if name == "COPY" and not text.startswith("--from"):
                for source in text.split()[:-1]:
                    pattern = re.sub(r"constraints-\w.*\.txt", "constraints-*.txt", source)
                    assert pattern in admitted, source
                    assert (REPOSITORY / source).exists(), source


@pytest.mark.parametrize("image", IMAGES)
def test_no_registry_and_no_secret_is_written_down(image: str) -> None:
    text = (DOCKER / f"{image}.Dockerfile").read_text()
    assert "http" not in text.replace("https://", "")
    assert "https://" not in text
    assert not re.search(r"(?i)password|token|secret", text)


def third_party_imports(package: Path) -> dict[str, str]:
    """Top-level module -> a file of the package that imports it, anywhere in it."""
    found: dict[str, str] = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and not top.startswith("octavo_"):
                    found[top] = str(path.relative_to(REPOSITORY))
    return found


@pytest.mark.parametrize(
    ("image", "packages"),
    [
        ("operator", ["operator/octavo_operator", "operator/octavo_cli"]),
        ("engine-cpu", ["engine/octavo_engine", "engine/octavo_fetch"]),
        ("engine-cuda", ["engine/octavo_engine", "engine/octavo_fetch"]),
    ],
)
def test_everything_that_an_image_imports_is_in_it(image: str, packages: list[str]) -> None:
    pinned = pins(image).keys()
    shippers = importlib.metadata.packages_distributions()
    for package in packages:
        for module, path in third_party_imports(REPOSITORY / package).items():
            distributions = {canonicalize_name(name) for name in shippers.get(module, [])}
            assert distributions & pinned, f"{path} imports {module}"
