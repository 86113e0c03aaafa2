import json
import math

import pytest

from octavo_engine.core.messages import TokenLogprob
from octavo_engine.serving.logprobs import (
    PlacedToken,
    chat_logprobs,
    clamp,
    completion_logprobs,
    prompt_logprobs,
)
from octavo_engine.serving.tokenizer import Tokenizer
from support.serving import IM_END, make_tokenizer_spec

TOKENIZER = Tokenizer(make_tokenizer_spec())
EMOJI = "👩".encode()


def place(token_id: int, logprob: float, top: tuple[tuple[int, float], ...] = ()) -> PlacedToken:
    known = TokenLogprob(token_id=token_id, logprob=logprob, rank=1, top=top)
    return PlacedToken(token_id=token_id, text_offset=0, logprob=known)


class TestE7NumbersThatJsonCannotWrite:
    @pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e9])
    def test_become_the_least_one(self, logprob: float) -> None:
        assert clamp(logprob) == -9999.0

    def test_others_stay(self) -> None:
        assert [clamp(value) for value in (-0.5, 0.0, -9998.0)] == [-0.5, 0.0, -9998.0]

    def test_wherever_they_stand(self) -> None:
        token = place(97, -math.inf, top=((98, math.nan), (99, -math.inf)))
        assert token.logprob is not None
        for made in (
            chat_logprobs([token], TOKENIZER, num_top=2),
            completion_logprobs([token], TOKENIZER, num_top=2),
            prompt_logprobs([token.logprob], TOKENIZER, num_top=2),
        ):
            assert "-9999.0" in json.dumps(made, allow_nan=False)


def test_a_part_of_a_character_has_its_bytes() -> None:
    tokens = [place(byte, -1.0) for byte in EMOJI]
    content = chat_logprobs(tokens, TOKENIZER, num_top=0)["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]) == EMOJI
    assert {entry["token"] for entry in content} == {"�"}


def test_parts_of_characters_do_not_fall_together_in_a_completion() -> None:
    top = tuple((byte, -1.0) for byte in EMOJI)
    (told,) = completion_logprobs([place(97, -2.0, top)], TOKENIZER, num_top=4)["top_logprobs"]
    assert set(told) == {f"bytes:\\x{byte:02x}" for byte in EMOJI} | {"a"}


def test_a_control_token_has_its_name() -> None:
    (entry,) = chat_logprobs([place(IM_END, -1.0)], TOKENIZER, num_top=0)["content"]
    assert entry["token"] == "<|im_end|>"


def test_no_more_candidates_than_asked_for() -> None:
    top = ((98, -0.5), (99, -1.0), (100, -2.0))
    (entry,) = chat_logprobs([place(97, -3.0, top)], TOKENIZER, num_top=2)["content"]
    assert [one["token"] for one in entry["top_logprobs"]] == ["b", "c"]
    (named,) = completion_logprobs([place(97, -3.0, top)], TOKENIZER, num_top=2)["top_logprobs"]
    assert named == {"b": -0.5, "c": -1.0, "a": -3.0}


def test_the_first_token_of_a_prompt_has_nothing_before_it() -> None:
    row = TokenLogprob(token_id=97, logprob=-3.0, rank=9, top=((98, -0.5), (97, -3.0)))
    first, second = prompt_logprobs([row], TOKENIZER, num_top=1)
    assert first is None
    assert second == {
        "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        "97": {"logprob": -3.0, "rank": 9, "decoded_token": "a"},
    }
