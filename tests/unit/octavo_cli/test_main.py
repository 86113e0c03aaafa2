"""`octavo` itself: a table of names that imports nothing before a command is typed."""

import importlib
import subprocess
import sys

import pytest

from octavo_cli.main import COMMANDS, main


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_no_command_is_a_usage_error_that_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "octavo COMMAND --help" in capsys.readouterr().out


def test_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sreve"]) == 2
    assert "'sreve'" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_leads_to_a_function(name: str) -> None:
    module, _, function = COMMANDS[name].target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_help_imports_no_heavy_package() -> None:
    program = (
        "import sys; from octavo_cli.main import main; main(['--help']);"
        "heavy = {'torch', 'kopf', 'kubernetes', 'fastapi', 'numpy', 'aiohttp'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_missing_package_names_the_extra_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert main(["serve", "x"]) == 2
    shown = capsys.readouterr().err
    assert "'torch'" in shown
    assert "octavo[engine]" in shown
