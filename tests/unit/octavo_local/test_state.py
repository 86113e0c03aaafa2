"""The state directory is private, held by one, and cleared."""

from pathlib import Path

import pytest

from octavo_local.state import StateDir, StateDirError, default_state_dir


def test_it_is_private_and_held_by_one_at_a_time(tmp_path: Path) -> None:
    state = StateDir.claim(tmp_path / "state")
    assert state.path.stat().st_mode & 0o777 == 0o700
    state.kubeconfig.write_text("secret")
    with pytest.raises(StateDirError, match=r"runs in .*already \(process \d+\)"):
        StateDir.claim(tmp_path / "state")
    assert state.kubeconfig.exists()  # the refused one touches nothing
    state.release()
    assert not state.kubeconfig.exists()
    StateDir.claim(tmp_path / "state").release()


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "pods" / "old").mkdir(parents=True)
    (tmp_path / "kubeconfig").write_text("old")
    state = StateDir.claim(tmp_path)
    assert not state.pods.exists()
    assert not state.kubeconfig.exists()
    state.release()


def test_it_cannot_be_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateDirError, match="--state-dir"):
        StateDir.claim(tmp_path / "file" / "state")


def test_the_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_state_dir() == tmp_path / "octavo" / "local"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_state_dir() == Path("/home/someone/.octavo/local")
