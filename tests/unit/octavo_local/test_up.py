"""The command line of `octavo up`, and the manifests that it reads."""

from fractions import Fraction
from pathlib import Path

import pytest

from octavo_local.apply import ManifestError, load_manifests
from octavo_local.up import parse_options


def test_options_are_read() -> None:
    options = parse_options(
        ["-f", "a.yaml", "-f", "b", "--node", "nvidia.com/gpu=2", "--node", "memory=8Gi",
         "--port", "9000", "--image", "tool:1"]
    )  # fmt: skip
    assert options.files == (Path("a.yaml"), Path("b"))
    assert options.cluster.resources == {
        "nvidia.com/gpu": Fraction(2),
        "memory": Fraction(8 * 2**30),
    }
    assert options.cluster.first_port == 9000
    assert options.cluster.images == {"tool:1"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--node", "gpu"], "'gpu' is not RESOURCE=AMOUNT"),
        (["--node", "cpu=many"], "'many' is no quantity"),
        (["--demo"], "--demo needs a manifest"),
        (["--unknown"], "unrecognized arguments"),
    ],
)
def test_wrong_options_are_named(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_options(argv)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"])
    text = capsys.readouterr().out
    assert "octavo up -f examples/smollm2.yaml" in text
    assert "nvidia.com/gpu=2" in text
    assert "Ctrl-C" in text


def test_documents_lists_and_folders_are_read(tmp_path: Path) -> None:
    one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\n"
    (tmp_path / "a.yaml").write_text(f"{one % 'a'}---\n---\n{one % 'b'}")
    listed = "".join("- " + (one % name).replace("\n", "\n  ").rstrip() + "\n" for name in "cd")
    (tmp_path / "b.yml").write_text(f"kind: List\napiVersion: v1\nitems:\n{listed}")
    (tmp_path / "notes.txt").write_text("not a manifest")
    found = load_manifests([tmp_path])
    assert [item.title for item in found] == [f"ConfigMap default/{name}" for name in "abcd"]
    assert found[1].source.endswith("a.yaml, document 3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is no YAML"),
        ("- 1", "is no Kubernetes object, but a list"),
        ("kind: Pod", "has no apiVersion"),
        ("apiVersion: v1\nkind: Pod", "Pod has no metadata.name"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ManifestError, match=message):
        load_manifests([tmp_path / "x.yaml"])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none\.yaml: No such file"):
        load_manifests([tmp_path / "none.yaml"])
