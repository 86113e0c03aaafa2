"""Several choices, log-probabilities, echo and steering by token, over real sockets."""

import functools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from octavo_wire import metrics as names
from support.http import chat_body, chunks, is_idle, raw_body, wait_for
from support.serving import (
    CHATML,
    END_OF_TEXT,
    IM_END,
    MODEL,
    RAW_PROMPT_END,
    RunningServer,
    as_tokens,
    make_fake_engine,
    make_tokenizer_spec,
    pace,
    serve_fake,
)

SCRIPTS = {
    "greet": as_tokens("Hello, world."),
    "emoji": as_tokens("a👩🏽‍🚀 한"),
    "cut": as_tokens("ab한"),
    "special": [ord("a"), 256, ord("b")],
    "alphabet": as_tokens("ABC DEFGHIJ KLM"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_fake(scripts=SCRIPTS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def complete(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    return client.completions.create(model=MODEL, prompt=text + RAW_PROMPT_END, **fields)


class TestE3SeveralChoices:
    """n = 8: every index exactly once, each with its own text and end."""

    def test_whole(self, client: openai.OpenAI) -> None:
        for _ in range(10):
            answer = ask(client, "greet", n=8)
            assert [choice.index for choice in answer.choices] == list(range(8))
            assert {choice.message.content for choice in answer.choices} == {"Hello, world."}
            assert {choice.finish_reason for choice in answer.choices} == {"stop"}

    def test_e2_streamed(self, client: openai.OpenAI) -> None:
        roles, ends, texts = [], [], ["", "", ""]
        for event in ask(client, "greet", n=3, stream=True, max_tokens=4):
            for choice in event.choices:
                if choice.delta.role:
                    assert texts[choice.index] == ""
                    roles.append(choice.index)
                if choice.finish_reason:
                    ends.append((choice.index, choice.finish_reason))
                texts[choice.index] += choice.delta.content or ""
        assert sorted(roles) == [0, 1, 2]
        assert sorted(ends) == [(0, "length"), (1, "length"), (2, "length")]
        assert texts == ["Hell"] * 3

    def test_a_prompt_counts_once_and_its_answers_each(self, client: openai.OpenAI) -> None:
        one, four = ask(client, "count me once, greet"), ask(client, "count me once, greet", n=4)
        assert four.usage.prompt_tokens == one.usage.prompt_tokens
        assert four.usage.completion_tokens == 4 * one.usage.completion_tokens
        *_, last = ask(
            client, "greet", n=2, stream=True, stream_options={"include_usage": True}, max_tokens=3
        )
        assert last.usage.completion_tokens == 6

    def test_completions_of_several_prompts_go_prompt_by_prompt(
        self, client: openai.OpenAI
    ) -> None:
        prompts = [name + RAW_PROMPT_END for name in ("greet", "alphabet")]
        answer = client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=40)
        assert [(choice.index, choice.text) for choice in answer.choices] == [
            (0, "Hello, world."),
            (1, "Hello, world."),
            (2, "ABC DEFGHIJ KLM"),
            (3, "ABC DEFGHIJ KLM"),
        ]

    def test_the_others_share_the_blocks_of_the_first(self) -> None:
        engine = make_fake_engine(scripts=SCRIPTS, block_size=4)
        with RunningServer(load=lambda _: engine) as server:
            body = raw_body("x" * 40, n=4, max_tokens=3)
            answer = server.client.post("/v1/completions", json=body).json()
            prompt_tokens = answer["usage"]["prompt_tokens"]
            prefilled = sum(step.total_tokens for step in engine.runner.steps)
            assert prefilled < 2 * prompt_tokens

    def test_f2_seeds_count_up(self, server: RunningServer) -> None:
        seen: list[Any] = []
        engine = server.server.state.served.engine  # type: ignore[union-attr]
        opened = engine.open
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "open", lambda spec: (seen.append(spec), opened(spec))[1])
            server.client.post("/v1/completions", json=raw_body("x", n=3, seed=7, max_tokens=1))
        assert [spec.sampling.seed for spec in seen] == [7, 8, 9]
        first = seen[0].request_id
        assert [spec.fork_of for spec in seen] == [None, first, first]
        assert len({spec.request_id for spec in seen}) == 3

    def test_d9_each_choice_takes_a_place_in_the_queue(self) -> None:
        with serve_fake(max_num_seqs=2, max_queued_requests=2, before_result=pace()) as server:
            refused = server.client.post("/v1/completions", json=raw_body("x", n=5, max_tokens=50))
            assert refused.status_code == 429
            wait_for(functools.partial(is_idle, server))
            taken = server.client.post("/v1/completions", json=raw_body("x", n=4, max_tokens=5))
            assert len(taken.json()["choices"]) == 4

    def test_i3_leaving_ends_all_of_them(self) -> None:
        with serve_fake(before_result=pace()) as server:
            body = {**raw_body("x", n=4, max_tokens=900), "stream": True}
            with server.client.stream("POST", "/v1/completions", json=body) as response:
                next(response.iter_raw())
            wait_for(functools.partial(is_idle, server))
            assert server.metric(names.REQUEST_SUCCESS, finished_reason="abort") == 4


class TestE3OneChoiceEndsEarly:
    def test_its_blocks_are_free_at_once(self) -> None:
        """Both answers to the first prompt end early; those to the second run on."""
        may_go_on = threading.Event()

        def hold(step: Any) -> None:
            if step.step > 40:
                may_go_on.wait(20)

        prompts = ["greet" + RAW_PROMPT_END, "other" + RAW_PROMPT_END]
        with serve_fake(scripts=SCRIPTS, before_result=hold) as server, ThreadPoolExecutor(1) as go:
            body = {"model": MODEL, "prompt": prompts, "n": 2, "max_tokens": 100}
            answer = go.submit(lambda: server.client.post("/v1/completions", json=body).json())
            wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 2)
            may_go_on.set()
            reasons = [choice["finish_reason"] for choice in answer.result()["choices"]]
            assert reasons == ["stop", "stop", "length", "length"]


def chat_tokens(answer: Any) -> list[Any]:
    return list(answer.choices[0].logprobs.content)


class TestLogprobsOfChats:
    @pytest.mark.parametrize("name", ["greet", "emoji", "special"])
    def test_bytes_are_those_of_the_text(self, client: openai.OpenAI, name: str) -> None:
        answer = ask(client, name, logprobs=True, top_logprobs=3)
        tokens = chat_tokens(answer)
        shown = [t for t in tokens if t.token != "<|endoftext|>"]
        assert b"".join(bytes(t.bytes) for t in shown).decode() == (
            answer.choices[0].message.content
        )
        for token in tokens:
            assert token.logprob <= 0
            assert len(token.top_logprobs) == 3
            values = [top.logprob for top in token.top_logprobs]
            assert values == sorted(values, reverse=True)

    @pytest.mark.parametrize("name", ["greet", "emoji", "cut", "alphabet", "special"])
    @pytest.mark.parametrize("fields", [{}, {"max_tokens": 4}, {"stop": ["lo,", "DEF"]}])
    def test_streamed_and_whole_are_the_same(
        self, client: openai.OpenAI, name: str, fields: dict[str, Any]
    ) -> None:
        asked = {"logprobs": True, "top_logprobs": 2, **fields}
        whole = chat_tokens(ask(client, name, **asked))
        streamed = [
            token
            for event in ask(client, name, stream=True, **asked)
            for choice in event.choices
            if choice.logprobs
            for token in choice.logprobs.content
        ]
        assert [t.model_dump() for t in streamed] == [t.model_dump() for t in whole]

    def test_a_cut_stop_text_has_none(self, client: openai.OpenAI) -> None:
        tokens = chat_tokens(ask(client, "alphabet", logprobs=True, stop=["DEF"]))
        assert "".join(token.token for token in tokens) == "ABC "

    def test_none_unless_asked_for(self, client: openai.OpenAI) -> None:
        assert ask(client, "greet").choices[0].logprobs is None
        (first, *_) = chat_tokens(ask(client, "greet", logprobs=True))
        assert first.top_logprobs == []

    def test_each_choice_has_its_own(self, client: openai.OpenAI) -> None:
        answer = ask(client, "greet", logprobs=True, n=2)
        for choice in answer.choices:
            assert "".join(t.token for t in choice.logprobs.content) == "Hello, world."


class TestLogprobsOfCompletions:
    def test_places_are_those_of_the_text(self, client: openai.OpenAI) -> None:
        choice = complete(client, "greet", logprobs=2, max_tokens=20).choices[0]
        logprobs = choice.logprobs
        assert "".join(logprobs.tokens) == choice.text == "Hello, world."
        assert logprobs.text_offset == list(range(13))
        for token, logprob, top in zip(
            logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
        ):
            assert top[token] == logprob
            assert len(top) in (2, 3)

    def test_zero_tells_the_tokens_own(self, client: openai.OpenAI) -> None:
        logprobs = complete(client, "greet", logprobs=0, max_tokens=3).choices[0].logprobs
        assert [set(top) for top in logprobs.top_logprobs] == [{"H"}, {"e"}, {"l"}]

    def test_parts_of_characters_have_names_of_their_own(self, client: openai.OpenAI) -> None:
        choice = complete(client, "emoji", logprobs=0, max_tokens=40).choices[0]
        assert choice.logprobs.tokens[1:5] == [f"bytes:\\x{b:02x}" for b in "👩".encode()]
        assert choice.logprobs.text_offset[:6] == [0, 1, 1, 1, 1, 2]

    @pytest.mark.parametrize("name", ["greet", "emoji", "cut"])
    @pytest.mark.parametrize("echo", [False, True])
    def test_streamed_and_whole_are_the_same(
        self, client: openai.OpenAI, name: str, echo: bool
    ) -> None:
        fields = {"logprobs": 1, "echo": echo, "max_tokens": 4}
        whole = complete(client, name, **fields).choices[0]
        streamed = {key: [] for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        text = ""
        for event in complete(client, name, stream=True, **fields):
            for choice in event.choices:
                text += choice.text
                for key, values in streamed.items():
                    values += getattr(choice.logprobs, key) if choice.logprobs else []
        assert text == whole.text
        assert streamed == {key: getattr(whole.logprobs, key) for key in streamed}


class TestEcho:
    def test_the_prompt_comes_first(self, client: openai.OpenAI) -> None:
        for stream in (False, True):
            answer = complete(client, "greet", echo=True, stream=stream, max_tokens=5)
            events = answer if stream else [answer]
            text = "".join(choice.text for event in events for choice in event.choices)
            assert text == "greet" + RAW_PROMPT_END + "Hello"

    def test_its_log_probabilities_begin_with_none(self, client: openai.OpenAI) -> None:
        answer = complete(client, "greet", echo=True, logprobs=1, max_tokens=2)
        logprobs = answer.choices[0].logprobs
        assert logprobs.token_logprobs[0] is None
        assert logprobs.top_logprobs[0] is None
        assert all(value <= 0 for value in logprobs.token_logprobs[1:])
        assert len(logprobs.tokens) == answer.usage.prompt_tokens + 2
        assert "".join(logprobs.tokens) == answer.choices[0].text

    def test_a_bos_that_nobody_wrote_is_not_shown(self) -> None:
        spec = make_tokenizer_spec(add_bos_token=True)
        with serve_fake(tokenizer=spec, scripts=SCRIPTS) as server:
            body = raw_body("greet", echo=True, max_tokens=1, logprobs=0)
            choice = server.client.post("/v1/completions", json=body).json()["choices"][0]
            assert choice["text"] == "greet" + RAW_PROMPT_END + "H"
            assert choice["logprobs"]["tokens"][:2] == ["<|endoftext|>", "g"]
            assert choice["logprobs"]["text_offset"][:3] == [0, 0, 1]

    def test_a_prompt_of_tokens_is_told_as_text(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(
            model=MODEL, prompt=[END_OF_TEXT, *as_tokens("hi")], echo=True, max_tokens=1
        )
        assert answer.choices[0].text.startswith("<|endoftext|>hi")

    def test_stop_texts_do_not_look_into_the_prompt(self, client: openai.OpenAI) -> None:
        answer = complete(client, "greet", echo=True, stop=["greet", "\nH"], max_tokens=20)
        assert answer.choices[0].text.endswith("Hello, world.")

    def test_with_several_choices(self, client: openai.OpenAI) -> None:
        answer = complete(client, "greet", echo=True, logprobs=0, n=2, max_tokens=1)
        first, second = answer.choices
        assert first.text == second.text
        assert first.logprobs.token_logprobs == second.logprobs.token_logprobs


class TestPromptLogprobs:
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    def test_one_row_a_token_streamed_or_not(self, server: RunningServer, path: str) -> None:
        make = chat_body if "chat" in path else raw_body
        body = make("greet", prompt_logprobs=2, max_tokens=3)
        whole = server.client.post(path, json=body).json()
        rows = whole["choices"][0]["prompt_logprobs"]
        assert len(rows) == whole["usage"]["prompt_tokens"]
        assert rows[0] is None
        for row in rows[1:]:
            assert 2 <= len(row) <= 3
            assert all(set(one) == {"logprob", "rank", "decoded_token"} for one in row.values())
        told = [
            choice["prompt_logprobs"]
            for part in chunks(server, path, body)
            for choice in part["choices"]
            if "prompt_logprobs" in choice
        ]
        assert told == [rows]


class TestSteering:
    def test_d6_bad_tokens_are_refused_and_the_engine_lives(self, server: RunningServer) -> None:
        for fields in (
            {"logit_bias": {"999999": 1}},
            {"logit_bias": {"1": 200}},
            {"allowed_token_ids": [999999]},
            {"stop_token_ids": [-1]},
        ):
            refused = server.client.post("/v1/chat/completions", json=chat_body("greet", **fields))
            assert (refused.status_code, refused.json()["error"]["param"].split(".")[0]) == (
                400,
                next(iter(fields)),
            )
        refused = server.client.post(
            "/v1/completions",
            content=json.dumps(raw_body("x", logit_bias={"1": float("nan")})),
            headers={"content-type": "application/json"},
        )
        assert refused.status_code == 400
        assert server.client.post("/v1/completions", json=raw_body("x")).status_code == 200

    def test_stop_tokens(self, client: openai.OpenAI) -> None:
        extra = {"stop_token_ids": [ord(",")]}
        choice = ask(client, "greet", extra_body=extra).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("Hello", "stop")
        extra["include_stop_str_in_output"] = True
        assert ask(client, "greet", extra_body=extra).choices[0].message.content == "Hello,"

    def test_c4_a_stop_text_across_the_first_min_tokens(self, client: openai.OpenAI) -> None:
        extra = {"min_tokens": 6, "include_stop_str_in_output": True}
        answer = ask(client, "alphabet", stop=["DEF", "HIJ"], extra_body=extra)
        assert answer.choices[0].message.content == "ABC DEFGHIJ"
        assert answer.usage.completion_tokens == 11


TOOL: Any = {"type": "function", "function": {"name": "look_up", "description": "finds"}}
TOOL_TEMPLATE = "{% if tools %}{{ tools | tojson }}\n{% endif %}" + CHATML


class TestTools:
    def test_a_template_without_a_place_for_them_refuses(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="no place for tools") as caught:
            ask(client, "greet", tools=[TOOL], tool_choice="none")
        assert caught.value.param == "tools"

    def test_they_are_shown_and_the_answer_is_text(self) -> None:
        spec = make_tokenizer_spec(chat_template=TOOL_TEMPLATE)
        with serve_fake(tokenizer=spec, scripts=SCRIPTS) as server:
            body = chat_body("greet", tools=[TOOL], tool_choice="none")
            answer = server.client.post("/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == "Hello, world."
            fields = {"messages": body["messages"], "tools": [TOOL]}
            tokens = server.client.post("/tokenize", json=fields).json()["tokens"]
            text = server.client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
            assert text.startswith('[{"type": "function", "function": {"name": "look_up"')

    def test_an_answer_goes_back_as_it_came(self, client: openai.OpenAI) -> None:
        messages: Any = [{"role": "user", "content": "greet"}]
        message = client.chat.completions.create(model=MODEL, messages=messages).choices[0].message
        again = [*messages, message, {"role": "user", "content": "greet"}]
        answer = client.chat.completions.create(model=MODEL, messages=again)
        assert answer.choices[0].message.content == "Hello, world."


def test_detokenize_is_the_inverse_of_tokenize(server: RunningServer) -> None:
    text = "the 한국 <|im_end|> end"
    tokens = server.client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert IM_END in tokens
    assert server.client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}
    assert server.client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    refused = server.client.post("/detokenize", json={"tokens": [10**6]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")


def test_embeddings_are_refused_with_the_reason(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="makes no embeddings"):
        client.embeddings.create(model=MODEL, input="a")


def test_the_version_is_that_of_the_package(server: RunningServer) -> None:
    assert server.client.get("/version").json()["version"].count(".") == 2
