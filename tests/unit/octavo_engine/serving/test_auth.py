from pathlib import Path

import pytest

from octavo_engine.errors import CannotStart
from octavo_engine.serving.auth import ApiKeys


def test_a_file_holds_one_key_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# for the web shop\nsecret-one\n\n  secret-two \n")
    keys = ApiKeys.from_file(str(path))
    assert keys.accepts(b"Bearer secret-one")
    assert keys.accepts(b"bearer secret-two")
    for wrong in (b"", b"Bearer", b"Bearer ", b"Bearer secret", b"Basic secret-one", b"secret-one"):
        assert not keys.accepts(wrong), wrong
    assert not keys.accepts(b"Bearer # for the web shop")


@pytest.mark.parametrize("content", [None, "", "\n# nothing\n"])
def test_an_engine_that_should_ask_for_keys_does_not_start_without(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CannotStart, match="api-key-file"):
        ApiKeys.from_file(str(path))


def test_keys_are_not_kept(tmp_path: Path) -> None:
    keys = ApiKeys(["secret-one"])
    assert "secret-one" not in repr(vars(keys))
