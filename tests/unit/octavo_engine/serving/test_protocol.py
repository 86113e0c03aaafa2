import contextlib
import json
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.errors import InvalidRequest
from octavo_engine.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    parse_request,
)

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def call_with(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


CALL = call_with("{}")


def parse_chat(**fields: Any) -> ChatRequest:
    return parse_request(ChatRequest, json.dumps({"model": "m", "messages": HI, **fields}).encode())


def parse_completion(**fields: Any) -> CompletionRequest:
    body = json.dumps({"model": "m", "prompt": "hi", **fields}).encode()
    return parse_request(CompletionRequest, body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "z"}, "suffix"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),  # D6
        ({"logit_bias": {"1": -101}}, "logit_bias"),
        ({"logit_bias": {"1": float("nan")}}, "logit_bias"),
        ({"logit_bias": {"1": "5"}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids"),
        ({"store": True}, "store"),
        ({"echo": 1}, "echo"),
        ({"guided_json": {}}, "guided_json"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids.0"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": "high"}, "priority"),
        ({"model": 5}, "model"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    for parse in (parse_chat, parse_completion):
        with pytest.raises(InvalidRequest) as caught:
            parse(**fields)
        # The key of a dictionary or the place in a list may be named as well.
        assert caught.value.param in (param, f"{param}.1", f"{param}.0")
        assert param.split(".")[0] in caught.value.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"content": "hi"}], "messages.0.role"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "assistant"}], "messages.0.content"),
        ([{"role": "user", "content": "hi", "tool_calls": [CALL]}], "messages.0.tool_calls"),
        ([{"role": "user", "content": "hi", "tool_call_id": "1"}], "messages.0.tool_call_id"),
        (
            [{"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f"}}]}],
            "messages.0.tool_calls.0.function.arguments",
        ),
        *(
            (
                [{"role": "assistant", "tool_calls": [call_with(arguments)]}],
                "messages.0.tool_calls.0.function.arguments",
            )
            for arguments in ("{", "[]", "1", '{"a": "\\ud800"}')
        ),
        ([{"role": "user", "content": "hi", "mood": "good"}], "messages.0.mood"),
    ],
)
def test_a_wrong_message_is_named(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(messages=messages)
    assert caught.value.param == param


def test_an_image_is_refused() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    with pytest.raises(InvalidRequest, match="type"):
        parse_chat(messages=[{"role": "user", "content": [part]}])


def test_fields_that_ask_for_nothing_are_taken() -> None:
    request = parse_chat(
        best_of=1, store=False, tools=[], tool_choice="auto", response_format={"type": "text"},
        logit_bias={}, stop=None, stream=None, temperature=None, user="u", metadata={"a": "b"},
    )  # fmt: skip
    assert request.stream is False
    assert request.stops == []


def test_true_does_not_pass_for_one() -> None:
    with pytest.raises(InvalidRequest):
        parse_chat(best_of=True)
    with pytest.raises(InvalidRequest):
        parse_chat(n=True)


class TestTools:
    """They are shown to the model; calls in its answer are not read, so it is not asked to call."""

    @pytest.mark.parametrize("choice", ["auto", "required", {"type": "function"}, None])
    def test_a_model_may_not_choose_them(self, choice: Any) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_chat(tools=[TOOL], tool_choice=choice)
        assert caught.value.param == "tool_choice"

    def test_they_may_be_shown(self) -> None:
        request = parse_chat(tools=[TOOL], tool_choice="none")
        assert [tool.for_template() for tool in request.tools or ()] == [TOOL]

    @pytest.mark.parametrize("choice", ["required", "f", {"type": "function"}])
    def test_a_choice_needs_tools(self, choice: Any) -> None:
        with pytest.raises(InvalidRequest, match="tool_choice"):
            parse_chat(tool_choice=choice)

    @pytest.mark.parametrize("tool", [{"type": "web"}, {"type": "function"}, "f"])
    def test_what_is_no_tool_is_named(self, tool: Any) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_chat(tools=[tool], tool_choice="none")
        assert (caught.value.param or "").startswith("tools.0")

    def test_a_conversation_with_calls(self) -> None:
        request = parse_chat(
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "assistant", "content": None, "tool_calls": [call_with('{"a": 1}')]},
                {"role": "tool", "content": "2", "tool_call_id": "1"},
            ]
        )
        function = {"name": "f", "arguments": {"a": 1}}
        assert [message.for_template() for message in request.messages] == [
            {"role": "system", "content": "be brief"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "2", "tool_call_id": "1"},
        ]

    def test_a_call_without_arguments(self) -> None:
        request = parse_chat(messages=[{"role": "assistant", "tool_calls": [call_with("")]}])
        (call,) = request.messages[0].for_template()["tool_calls"]
        assert call["function"]["arguments"] == {}


def test_top_logprobs_without_logprobs_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(top_logprobs=3)
    assert caught.value.param == "top_logprobs"
    assert parse_chat(top_logprobs=0).num_logprobs is None
    assert parse_chat(logprobs=True, top_logprobs=3).num_logprobs == 3
    assert parse_chat(logprobs=True).num_logprobs == 0


def test_how_many_log_probabilities_the_engine_is_asked_for() -> None:
    assert parse_completion().num_logprobs is None
    assert parse_completion(logprobs=0).num_logprobs == 0
    assert parse_completion(logprobs=2).num_prompt_logprobs is None
    assert parse_completion(logprobs=2, echo=True).num_prompt_logprobs == 2
    assert parse_completion(logprobs=2, echo=True, prompt_logprobs=5).num_prompt_logprobs == 5
    assert parse_chat(prompt_logprobs=0).num_prompt_logprobs == 0


def test_the_sequences_of_one_request_are_bounded() -> None:
    assert parse_completion(prompt=["a"] * 64, n=2).n == 2
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(prompt=["a"] * 64, n=3)
    assert caught.value.param == "n"


def test_an_answer_can_be_sent_back_with_its_nulls() -> None:
    message = {"role": "assistant", "content": "a", "refusal": None, "audio": None}
    assert parse_chat(messages=[message]).messages[0].for_template()["content"] == "a"


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = parse_chat(messages=[{"role": "user", "content": parts}])
    assert request.messages[0].for_template() == {"role": "user", "content": "ab"}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b'{"a":' + b"[" * 100_000, b'{"model": "\xff"}', b'"\\ud800"'],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="no JSON object"):
        parse_request(ChatRequest, body)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        parse_request(CompletionRequest, b'{"model": "m", "prompt": "\\ud800"}')


class TestPrompts:
    @pytest.mark.parametrize(
        ("prompt", "prompts"),
        [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])],
    )
    def test_four_forms(self, prompt: Any, prompts: Any) -> None:
        assert parse_completion(prompt=prompt).prompts == prompts

    @pytest.mark.parametrize("prompt", [True, {}, [1, "a"], [None], ["a", 1]])
    def test_anything_else_is_refused(self, prompt: Any) -> None:
        with pytest.raises(InvalidRequest, match="prompt"):
            parse_completion(prompt=prompt)

    @pytest.mark.parametrize("prompt", [[], ["a"] * 65])
    def test_none_or_too_many_are_refused(self, prompt: Any) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_completion(prompt=prompt)
        assert caught.value.param == "prompt"


_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
_FIELDS = st.sampled_from(
    [*ChatRequest.model_fields, *CompletionRequest.model_fields, "best_of", "functions"]
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(_FIELDS, _ANY_JSON, max_size=4), st.sampled_from([parse_chat, parse_completion])
)
def test_any_json_is_a_request_or_a_named_error(
    fields: dict[str, Any], parse: Callable[..., Any]
) -> None:
    with contextlib.suppress(InvalidRequest):
        parse(**fields)


def test_an_answer_of_ours_can_be_sent_back_as_a_message() -> None:
    """Clients append `choices[0].message` to the conversation as it came."""
    reply = {"role": "assistant", "content": "Hello!", "refusal": None, "tool_calls": None}
    request = parse_chat(messages=[*HI, reply, *HI])
    assert [message.role for message in request.messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize("role", ["im_end", "admin", "", "user|>"])
def test_a_role_of_the_callers_own_is_refused(role: str) -> None:
    with pytest.raises(InvalidRequest, match="role"):
        parse_chat(messages=[{"role": role, "content": "hi"}])


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionRequest, {"prompt": [None] * 50_000}),
        (CompletionRequest, {"prompt": [[None] * 50_000]}),
        (CompletionRequest, {"prompt": "x", "stop": [0] * 50_000}),
        (ChatRequest, {"messages": [0] * 50_000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [0] * 50_000}]}),
    ],
)
def test_a_list_of_wrong_items_is_not_looked_through(kind: Any, fields: dict[str, Any]) -> None:
    """One error for each of a million items took minutes and gigabytes."""
    with pytest.raises(pydantic.ValidationError) as caught:
        kind.model_validate({"model": "m", **fields}, strict=True)
    assert caught.value.error_count() < 10
