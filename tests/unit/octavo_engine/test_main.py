import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from octavo_engine import __main__ as main
from octavo_engine.errors import CannotStart
from octavo_wire.failures import EXIT_CANNOT_START, Reason, parse_startup_failure
from support.serving import as_tokens, make_fake_engine


@pytest.fixture
def termination_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    log = tmp_path / "termination"
    monkeypatch.setenv("OCTAVO_TERMINATION_LOG", str(log))

    def refuse(status: int) -> NoReturn:
        raise AssertionError(f"the process would have ended with {status}")

    monkeypatch.setattr(os, "_exit", refuse)
    return log


def use_engine(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    engine = make_fake_engine(**options)
    monkeypatch.setattr(main, "build", lambda settings, progress: engine)


class TestServe:
    def test_a_wrong_setting(
        self, termination_log: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main.serve(["m.gguf", "--port", "lots"]) == 2
        failure = parse_startup_failure(termination_log.read_text())
        assert failure is not None
        assert failure.reason is Reason.INVALID_SETTING
        assert "--port" in failure.message
        assert failure.message in capsys.readouterr().err

    def test_no_model(self, termination_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main.serve([]) == 2
        assert "MODEL" in capsys.readouterr().err

    def test_a_key_file_that_is_not_there(self, termination_log: Path) -> None:
        arguments = ["m.gguf", "--single-process", "--port", "0", "--api-key-file", "nowhere"]
        assert main.serve(arguments) == EXIT_CANNOT_START
        failure = parse_startup_failure(termination_log.read_text())
        assert failure is not None
        assert failure.reason is Reason.INVALID_SETTING

    def test_a_model_that_cannot_be_loaded(
        self,
        termination_log: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def fail(*_: object) -> NoReturn:
            raise CannotStart(Reason.INSUFFICIENT_MEMORY, "Too little memory.", "Give it more.")

        monkeypatch.setattr(main, "build", fail)
        assert main.serve(["m.gguf", "--single-process", "--port", "0"]) == EXIT_CANNOT_START
        failure = parse_startup_failure(termination_log.read_text())
        assert failure is not None
        assert (failure.reason, failure.message) == (
            Reason.INSUFFICIENT_MEMORY,
            "Too little memory.",
        )
        assert "Too little memory.\nGive it more." in capsys.readouterr().err

    def test_a_fault_of_ours_is_no_user_mistake(
        self, termination_log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(main, "build", lambda *_: 1 // 0)
        assert main.serve(["m.gguf", "--single-process", "--port", "0"]) == 1
        failure = parse_startup_failure(termination_log.read_text())
        assert failure is not None
        assert failure.reason is Reason.INTERNAL_ERROR

    def test_a_tokenizer_that_is_not_supported(
        self, termination_log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_fake_engine()
        object.__setattr__(engine.description.tokenizer, "kind", "llama")
        monkeypatch.setattr(main, "build", lambda *_: engine)
        assert main.serve(["m.gguf", "--single-process", "--port", "0"]) == EXIT_CANNOT_START
        failure = parse_startup_failure(termination_log.read_text())
        assert failure is not None
        assert failure.reason is Reason.MODEL_NOT_SUPPORTED

    def test_help_teaches_with_an_example(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main.serve(["--help"])
        assert caught.value.code == 0
        assert "curl" in capsys.readouterr().out


@pytest.mark.usefixtures("termination_log")
class TestGenerate:
    def test_the_answer_goes_to_stdout_and_the_rate_to_stderr(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        use_engine(monkeypatch, scripts={"greet": as_tokens("Hello 한국!")})
        assert main.generate(["m.gguf", "-p", "greet"]) == 0
        out, err = capsys.readouterr()
        assert out == "Hello 한국!\n"
        assert "tokens/s" in err

    def test_raw_and_max_tokens(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        use_engine(monkeypatch)
        assert main.generate(["m.gguf", "-p", "ab", "--raw", "--max-tokens", "3"]) == 0
        assert len(capsys.readouterr().out) == 4

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["-p", "x", "--temperature", "hot"], "--temperature"),
            (["-p", "x", "--max-tokens", "0"], "--max-tokens"),
            (["-p", "x", "--seed", "1.5"], "--seed"),
            (["-p", "x", "--port", "80"], "--port"),
            (["-p", "x", "--chat", "--raw"], "--raw"),
            ([], "--prompt"),
            (["-p", "x" * 5000], "context"),
        ],
    )
    def test_mistakes_are_named(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        named: str,
    ) -> None:
        use_engine(monkeypatch)
        assert main.generate(["m.gguf", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert named in err
