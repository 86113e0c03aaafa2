"""The rules that hold the house up and that no linter knows."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STDLIB_ONLY = {
    "engine/octavo_sizing": {"octavo_sizing"},
    "engine/octavo_wire": {"octavo_wire"},
    "engine/octavo_engine/core": {"octavo_engine", "octavo_wire"},
    "operator/octavo_operator/core": {"octavo_operator", "octavo_sizing", "octavo_wire"},
    "operator/octavo_operator/api": {"octavo_operator", "octavo_sizing", "octavo_wire"},
    "operator/octavo_cli": {"octavo_cli"},
}
THINKING_PACKAGES = (
    "engine/octavo_engine/core",
    "operator/octavo_operator/core",
    "operator/octavo_operator/api",
)
CLOCKS_AND_IO = {
    *("time", "random", "secrets", "uuid", "logging", "asyncio", "threading", "subprocess"),
    *("os", "io", "pathlib", "shutil", "tempfile", "socket", "socketserver", "http", "urllib"),
}
# The types of datetime are values like others; these ask a clock.
CLOCK_CALLS = {"now", "utcnow", "today"}
MOST_LINES = 420


def imported_modules(package: str) -> Iterator[tuple[Path, str]]:
    """(file, top-level name) of every import below `package`."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield path, node.module.partition(".")[0]


@pytest.mark.parametrize("package", STDLIB_ONLY)
def test_package_imports_the_standard_library_and_its_floor_only(package: str) -> None:
    allowed = sys.stdlib_module_names | STDLIB_ONLY[package]
    assert [
        (str(path), name) for path, name in imported_modules(package) if name not in allowed
    ] == []


@pytest.mark.parametrize("package", THINKING_PACKAGES)
def test_core_takes_time_chance_and_io_as_arguments(package: str) -> None:
    assert [
        (str(path), name) for path, name in imported_modules(package) if name in CLOCKS_AND_IO
    ] == []
    assert [
        (str(path), call)
        for path in sorted((ROOT / package).rglob("*.py"))
        for call in calls_to_clocks_and_files(path.read_text())
    ] == []


def calls_to_clocks_and_files(source: str) -> list[str]:
    """datetime.now(), date.today() and open(), however datetime was imported."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        ast.unparse(called)
        for called in calls
        if (isinstance(called, ast.Attribute) and called.attr in CLOCK_CALLS)
        or (isinstance(called, ast.Name) and called.id in {"open", "print", "input"})
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import datetime as d\nx = d.datetime.now(d.UTC)", ["d.datetime.now"]),
        ("from datetime import datetime\nx = datetime.utcnow()", ["datetime.utcnow"]),
        ("from datetime import date\nx = date.today()", ["date.today"]),
        ("x = open('f')", ["open"]),
        ("def f(now: datetime) -> str: return now.strftime('%Y')", []),
    ],
)
def test_a_clock_is_found_where_it_is_asked(source: str, found: list[str]) -> None:
    assert calls_to_clocks_and_files(source) == found


def test_the_operator_folder_does_not_shadow_the_standard_library() -> None:
    program = "import collections, operator; print(operator.__file__); operator.itemgetter"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert str(ROOT) not in answer.stdout.replace(sys.prefix, "").replace(sys.base_prefix, "")
    assert answer.stdout.strip().endswith("operator.py")


@pytest.mark.parametrize("folder", ["operator", "engine", "tests"])
def test_folders_that_hold_packages_are_none_themselves(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_files_hold_one_idea_each() -> None:
    sources = [*(ROOT / "engine").rglob("*.py"), *(ROOT / "operator").rglob("*.py")]
    assert sources
    lengths = {str(path): len(path.read_text().splitlines()) for path in sources}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}
