import json
from typing import Any

import pytest

from octavo_engine.core.messages import SamplingParams
from octavo_engine.errors import ContextTooLong, InvalidRequest
from octavo_engine.serving.protocol import ChatRequest, CompletionRequest, parse_request
from octavo_engine.serving.sampling import for_sibling, make_sampling
from support.serving import IM_END, make_fake_engine

MODEL = make_fake_engine(max_model_len=128).description


def chat(num_prompt_tokens: int = 10, *, policy: str = "reject", **fields: Any) -> SamplingParams:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = parse_request(ChatRequest, json.dumps(body).encode())
    return make_sampling(
        request,
        MODEL,
        num_prompt_tokens=num_prompt_tokens,
        prompt_field="messages",
        max_tokens_policy=policy,
    )


def complete(num_prompt_tokens: int = 10, **fields: Any) -> SamplingParams:
    request = parse_request(
        CompletionRequest, json.dumps({"model": "m", "prompt": "a", **fields}).encode()
    )
    return make_sampling(request, MODEL, num_prompt_tokens=num_prompt_tokens, prompt_field="prompt")


class TestD3MaxTokensAndTheContext:
    """Explicit values that do not fit are refused with true numbers; defaults are cut."""

    def test_an_explicit_value_beyond_the_context_is_refused(self) -> None:
        with pytest.raises(ContextTooLong) as caught:
            chat(100, max_tokens=64)
        error = caught.value
        assert (error.status, error.code, error.param) == (
            400,
            "context_length_exceeded",
            "max_tokens",
        )
        assert "128 tokens" in error.message
        assert "requested 164 tokens (100 in the messages, 64 in the completion)" in error.message

    @pytest.mark.parametrize("length", [128, 200])
    def test_a_prompt_that_leaves_no_room_is_refused(self, length: int) -> None:
        for ask, field in ((chat, "messages"), (complete, "prompt")):
            with pytest.raises(ContextTooLong) as caught:
                ask(length)
            assert caught.value.param == field
            assert f"{length} tokens" in caught.value.message

    def test_what_fits_exactly_is_taken(self) -> None:
        assert chat(100, max_tokens=28).max_tokens == 28

    def test_a_chat_goes_on_to_the_end_of_the_context(self) -> None:
        assert chat(100).max_tokens == 28

    def test_a_completion_has_16_tokens_or_what_fits(self) -> None:
        assert complete(100).max_tokens == 16
        assert complete(120).max_tokens == 8

    @pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
    def test_the_policy_may_be_to_cut(self, field: str) -> None:
        assert chat(100, policy="clamp", **{field: 64}).max_tokens == 28
        assert chat(100, policy="clamp", **{field: 5}).max_tokens == 5
        for length in (128, 200):
            with pytest.raises(ContextTooLong):
                chat(length, policy="clamp", **{field: 5})

    def test_both_names_of_the_limit(self) -> None:
        assert chat(max_completion_tokens=5).max_tokens == 5
        assert chat(max_completion_tokens=5, max_tokens=5).max_tokens == 5
        with pytest.raises(InvalidRequest, match="differ"):
            chat(max_completion_tokens=5, max_tokens=6)


class TestF7EdgesOfSampling:
    def test_top_k_off_and_beyond_the_vocabulary(self) -> None:
        assert [chat(top_k=k).top_k for k in (-1, 0, 5, MODEL.vocab_size)] == [0, 0, 5, 0]

    def test_bounds_are_taken_as_they_are(self) -> None:
        sampling = chat(min_p=1, top_p=1, temperature=0)
        assert (sampling.min_p, sampling.top_p, sampling.temperature) == (1, 1, 0)


def test_defaults() -> None:
    sampling = chat()
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (1.0, 1.0, None)
    assert sampling.stop_token_ids == {IM_END}
    assert sampling.suppress_until_min_tokens == frozenset()


def test_stop_tokens_and_end_of_sequence() -> None:
    assert chat(stop_token_ids=[5]).stop_token_ids == {5, IM_END}
    assert chat(stop_token_ids=[5], ignore_eos=True).stop_token_ids == {5}
    assert chat(min_tokens=2).suppress_until_min_tokens == {IM_END}
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        chat(stop_token_ids=[MODEL.vocab_size])


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        chat(max_tokens=3, min_tokens=4)


class TestD6BiasedAndAllowedTokens:
    def test_biases_are_checked_and_passed_on(self) -> None:
        assert chat().logit_bias == ()
        assert chat(logit_bias={"7": 100, "0": -1.5}).logit_bias == ((7, 100.0), (0, -1.5))

    @pytest.mark.parametrize("key", ["999999999", "-1", "a", "1.0", "01", " 1", "", "9" * 5000])
    def test_a_key_that_is_no_token_is_refused(self, key: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            chat(logit_bias={key: 1})
        assert caught.value.param == "logit_bias"
        assert len(caught.value.message) < 200

    def test_allowed_tokens(self) -> None:
        assert chat().allowed_token_ids is None
        assert chat(allowed_token_ids=[3, 3, 4]).allowed_token_ids == {3, 4}
        for token_id in (-1, MODEL.vocab_size):
            with pytest.raises(InvalidRequest, match="allowed_token_ids"):
                chat(allowed_token_ids=[token_id])

    def test_some_token_must_remain(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            chat(allowed_token_ids=[IM_END], min_tokens=1)
        assert caught.value.param == "allowed_token_ids"
        assert chat(allowed_token_ids=[IM_END]).allowed_token_ids == {IM_END}
        assert chat(allowed_token_ids=[IM_END, 5], min_tokens=1).min_tokens == 1


class TestF2SeedsOfSeveralChoices:
    def test_count_up(self) -> None:
        seeds = [for_sibling(chat(seed=5), index).seed for index in range(3)]
        assert seeds == [5, 6, 7]

    def test_none_stays_none(self) -> None:
        assert for_sibling(chat(), 3).seed is None

    def test_the_largest_goes_on_with_the_smallest(self) -> None:
        assert for_sibling(chat(seed=2**63 - 1), 1).seed == -(2**63)
