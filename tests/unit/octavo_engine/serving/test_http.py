"""The server over real sockets and a runner that follows scripts; classes are named after traps."""

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from octavo_wire import metrics as names
from support.http import chat_body, chat_text, chunks, is_idle, raw_body, stream, wait_for
from support.serving import (
    IM_END,
    MODEL,
    RAW_PROMPT_END,
    FakeEngine,
    RunningServer,
    as_tokens,
    make_fake_engine,
    make_tokenizer_spec,
    pace,
    serve_fake,
)

SCRIPTS = {
    "greet": as_tokens("Hello, world."),
    "emoji": as_tokens("👩🏽‍🚀 한국어"),
    "alphabet": as_tokens("ABC DEFGHIJ KLM"),
    "special": [ord("a"), 256, ord("b")],
    "cut": as_tokens("ab한"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_fake(scripts=SCRIPTS) as running:
        yield running


@pytest.fixture(scope="module")
def slow_server() -> Iterator[RunningServer]:
    """Its steps take 2 ms, so there is time to do something in the middle of an answer."""
    with serve_fake(before_result=pace(), max_num_seqs=4, num_blocks=2049) as running:
        yield running


class TestStreamedAndWholeAreTheSame:
    @pytest.mark.parametrize("text", ["greet", "emoji", "alphabet", "special", "anything"])
    @pytest.mark.parametrize("fields", [{}, {"max_tokens": 3}, {"stop": ["DEF", "o,"]}])
    def test_chat(self, server: RunningServer, text: str, fields: dict[str, Any]) -> None:
        body = chat_body(text, **{"max_tokens": 40, **fields})
        whole = server.client.post("/v1/chat/completions", json=body).json()
        parts = chunks(
            server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}
        )
        choice = whole["choices"][0]
        assert chat_text(parts) == choice["message"]["content"]
        reasons = [c["finish_reason"] for part in parts for c in part["choices"]]
        assert [reason for reason in reasons if reason] == [choice["finish_reason"]]
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [parts[-1]["usage"][k] for k in counts] == [whole["usage"][k] for k in counts]

    def test_completions_of_several_prompts(self, server: RunningServer) -> None:
        prompts = [name + RAW_PROMPT_END for name in ("greet", "alphabet", "emoji")]
        body = {"model": MODEL, "prompt": prompts, "max_tokens": 60}
        whole = server.client.post("/v1/completions", json=body).json()
        texts = [choice["text"] for choice in whole["choices"]]
        assert texts == ["Hello, world.", "ABC DEFGHIJ KLM", "👩🏽‍🚀 한국어"]
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
        streamed = ["", "", ""]
        for part in chunks(server, "/v1/completions", body):
            for choice in part["choices"]:
                streamed[choice["index"]] += choice["text"]
        assert streamed == texts

    @pytest.mark.parametrize("fields", [{}, {"max_tokens": 3}, {"stop": ["DEF", "o,"]}])
    def test_with_a_step_under_way_while_the_next_is_decided(self, fields: dict[str, Any]) -> None:
        texts = []
        for depth in (0, 1):
            with serve_fake(scripts=SCRIPTS, async_depth=depth) as server:
                for name in SCRIPTS:
                    body = chat_body(name, **fields)
                    answer = server.client.post("/v1/chat/completions", json=body).json()
                    choice = answer["choices"][0]
                    texts.append((name, choice, answer["usage"]["completion_tokens"]))
                wait_for(functools.partial(is_idle, server))
        assert texts[: len(SCRIPTS)] == texts[len(SCRIPTS) :]


class TestE1Usage:
    @pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
    def test_none_unless_asked_for(self, server: RunningServer, options: Any) -> None:
        parts = chunks(server, "/v1/chat/completions", chat_body("greet", stream_options=options))
        assert all(part.get("usage") is None and part["choices"] for part in parts)

    def test_one_chunk_of_its_own_at_the_end(self, server: RunningServer) -> None:
        body = chat_body("greet", stream_options={"include_usage": True})
        *others, last = chunks(server, "/v1/chat/completions", body)
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == len("Hello, world.") + 1
        assert all(part["usage"] is None for part in others)

    def test_cached_tokens(self, server: RunningServer) -> None:
        body = chat_body("the same words again and again, greet")
        server.client.post("/v1/chat/completions", json=body)
        usage = server.client.post("/v1/chat/completions", json=body).json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert usage["prompt_tokens"] - 4 <= cached <= usage["prompt_tokens"]

    def test_a_stop_string_ends_the_count(self, server: RunningServer) -> None:
        body = chat_body("alphabet", stop=["DEF"])
        usage = server.client.post("/v1/chat/completions", json=body).json()["usage"]
        assert usage["completion_tokens"] == len("ABC DEF")


class TestE2FinishReasonAndRole:
    def test_each_once(self, server: RunningServer) -> None:
        parts = chunks(server, "/v1/chat/completions", chat_body("greet"))
        choices = [part["choices"][0] for part in parts]
        assert [("role" in choice["delta"]) for choice in choices] == [True] + [False] * (
            len(choices) - 1
        )
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [
            "stop"
        ]
        assert len({part["id"] for part in parts}) == 1

    def test_one_for_every_index(self, server: RunningServer) -> None:
        body = {"model": MODEL, "prompt": ["greet" + RAW_PROMPT_END, "b", "c"], "max_tokens": 3}
        ends = [
            (choice["index"], choice["finish_reason"])
            for part in chunks(server, "/v1/completions", body)
            for choice in part["choices"]
            if choice["finish_reason"]
        ]
        assert sorted(ends) == [(0, "length"), (1, "length"), (2, "length")]


class TestE8ErrorInTheMiddleOfAStream:
    def test_is_a_chunk_with_error_and_then_the_end(self) -> None:
        def fail(request_id: str, history: Any) -> str | None:
            return "logits are not numbers" if len(history) > 45 else None

        with serve_fake(scripts=SCRIPTS, find_failure=fail) as server:
            *parts, last = stream(server, "/v1/chat/completions", chat_body("x", max_tokens=200))
            assert json.loads(last)["error"]["message"] == "logits are not numbers"
            assert "[DONE]" not in parts
            response = server.client.post(
                "/v1/chat/completions", json=chat_body("x", max_tokens=200)
            )
            assert response.status_code == 500
            assert response.json()["error"]["type"] == "server_error"
            assert server.metric(names.REQUEST_SUCCESS, finished_reason="error") == 2
            assert is_idle(server)
            answer = server.client.post("/v1/completions", json=raw_body("greet", max_tokens=3))
            assert answer.json()["choices"][0]["text"] == "Hel"


class TestC1StopStrings:
    def test_no_part_of_the_stop_is_streamed(self, server: RunningServer) -> None:
        parts = chunks(server, "/v1/chat/completions", chat_body("alphabet", stop=["DEFGHIJ"]))
        assert chat_text(parts) == "ABC "
        assert parts[-1]["choices"][0]["finish_reason"] == "stop"

    def test_the_engine_stops_too(self, server: RunningServer) -> None:
        server.client.post("/v1/chat/completions", json=chat_body("x", stop=["a", "b", "c"]))
        wait_for(lambda: is_idle(server))


class TestC5PartialCharacters:
    def test_no_replacement_character_in_any_delta(self, server: RunningServer) -> None:
        for part in chunks(server, "/v1/chat/completions", chat_body("emoji")):
            assert "�" not in json.dumps(part, ensure_ascii=False)

    def test_a_character_that_max_tokens_cuts_is_dropped(self, server: RunningServer) -> None:
        body = chat_body("cut", max_tokens=4)
        whole = server.client.post("/v1/chat/completions", json=body).json()
        assert whole["choices"][0]["message"]["content"] == "ab"
        assert chat_text(chunks(server, "/v1/chat/completions", body)) == "ab"


class TestC8SpecialTokens:
    def test_hidden_unless_asked_for(self, server: RunningServer) -> None:
        answers = [
            server.client.post(
                "/v1/chat/completions", json=chat_body("special", skip_special_tokens=skip)
            ).json()["choices"][0]["message"]["content"]
            for skip in (True, False)
        ]
        assert answers == ["ab", "a<|endoftext|>b"]

    def test_tokens_behind_the_end_with_ignore_eos(self, server: RunningServer) -> None:
        body = chat_body("greet", ignore_eos=True, max_tokens=20)
        choice = server.client.post("/v1/chat/completions", json=body).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (
            "Hello, world.",
            "length",
        )


class TestD1PromptBeyondTheCache:
    def test_is_refused_with_the_limit_and_the_next_one_is_served(self) -> None:
        with serve_fake(scripts=SCRIPTS, num_blocks=26, max_model_len=4000) as server:
            refused = server.client.post("/v1/completions", json=raw_body("x" * 200))
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
            assert "100" in error["message"]
            served = server.client.post("/v1/completions", json=raw_body("greet", max_tokens=2))
            assert served.json()["choices"][0]["text"] == "He"

    def test_b7_an_answer_that_outgrows_the_cache_ends_with_length(self) -> None:
        with serve_fake(num_blocks=26, max_model_len=4000) as server:
            answer = server.client.post("/v1/completions", json=raw_body("x", max_tokens=2000))
            assert answer.json()["choices"][0]["finish_reason"] == "length"
            assert is_idle(server)


class TestD2TwoHalves:
    def test_run_one_after_the_other(self) -> None:
        with (
            serve_fake(num_blocks=26, max_model_len=100, before_result=pace()) as server,
            ThreadPoolExecutor(2) as pool,
        ):
            bodies = [raw_body(letter * 40, max_tokens=20) for letter in "ab"]
            answers = list(
                pool.map(lambda body: server.client.post("/v1/completions", json=body), bodies)
            )
            assert [answer.status_code for answer in answers] == [200, 200]


class TestD3Context:
    def test_refusals_are_shaped_like_openai(self) -> None:
        with serve_fake(max_model_len=128) as server:
            for fields in ({"max_tokens": 120}, {"max_completion_tokens": 120}):
                response = server.client.post(
                    "/v1/chat/completions", json=chat_body("hello", **fields)
                )
                assert response.status_code == 400
                error = response.json()["error"]
                assert error["message"].startswith("This model's maximum context length is 128")
                assert error["type"] == "invalid_request_error"
                assert error["param"] == next(iter(fields))
                assert error["code"] == "context_length_exceeded"
            long = server.client.post("/v1/chat/completions", json=chat_body("x" * 5000))
            assert (long.status_code, long.json()["error"]["param"]) == (400, "messages")
            answer = server.client.post("/v1/chat/completions", json=chat_body("hello")).json()
            assert answer["usage"]["total_tokens"] == 128
            assert answer["choices"][0]["finish_reason"] == "length"


class TestD4EmptyPrompts:
    def test_text_begins_with_bos(self, server: RunningServer) -> None:
        for prompt in ("", [""]):
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
            assert server.client.post("/v1/completions", json=body).json()["usage"] == {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "total_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 0},
            }

    @pytest.mark.parametrize("prompt", [[], [[]], [[1], []], [-1], [10**6]])
    def test_no_tokens_or_none_of_ours_are_refused(
        self, server: RunningServer, prompt: Any
    ) -> None:
        body = {"model": MODEL, "prompt": prompt}
        response = server.client.post("/v1/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")

    def test_no_messages_are_refused(self, server: RunningServer) -> None:
        body = {"model": MODEL, "messages": []}
        response = server.client.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")

    def test_without_bos_an_empty_text_is_refused(self) -> None:
        with serve_fake(tokenizer=make_tokenizer_spec(bos_token_id=None)) as server:
            body = {"model": MODEL, "prompt": ""}
            assert server.client.post("/v1/completions", json=body).status_code == 400


class TestD7EqualRequestIds:
    def test_do_not_meet(self, slow_server: RunningServer) -> None:
        def ask(_: int) -> int:
            body = raw_body("x", max_tokens=30)
            return slow_server.client.post(
                "/v1/completions", json=body, headers={"X-Request-Id": "same"}
            ).status_code

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(ask, range(2))) == [200, 200]


class TestD9FullQueue:
    def test_is_refused_at_once_and_those_inside_go_on(self) -> None:
        with (
            serve_fake(max_num_seqs=2, max_queued_requests=2, before_result=pace()) as server,
            ThreadPoolExecutor(20) as pool,
        ):
            body = raw_body("x", max_tokens=200)
            answers = list(
                pool.map(lambda _: server.client.post("/v1/completions", json=body), range(20))
            )
            statuses = sorted(answer.status_code for answer in answers)
            assert set(statuses) == {200, 429}
            assert statuses.count(200) >= 4
            refused = next(answer for answer in answers if answer.status_code == 429)
            assert int(refused.headers["retry-after"]) > 0
            assert refused.json()["error"]["code"] == "queue_full"
            assert is_idle(server)

    def test_a_request_of_many_prompts_enters_whole_or_not_at_all(self) -> None:
        with serve_fake(max_num_seqs=2, max_queued_requests=2, before_result=pace()) as server:
            body = {"model": MODEL, "prompt": ["x"] * 6, "max_tokens": 50}
            for streaming in (False, True):
                answer = server.client.post("/v1/completions", json={**body, "stream": streaming})
                assert answer.status_code == 429
                wait_for(functools.partial(is_idle, server))


class TestD12Errors:
    def test_a_templates_complaint_is_a_400(self) -> None:
        spec = make_tokenizer_spec(chat_template="{{ raise_exception('Roles must alternate') }}")
        with serve_fake(tokenizer=spec) as server:
            response = server.client.post("/v1/chat/completions", json=chat_body("x"))
            assert response.status_code == 400
            assert response.json()["error"]["message"] == "Roles must alternate"

    def test_no_template_is_a_400_that_says_what_to_do(self) -> None:
        with serve_fake(tokenizer=make_tokenizer_spec(chat_template=None)) as server:
            response = server.client.post("/v1/chat/completions", json=chat_body("x"))
            assert response.status_code == 400
            assert "/v1/completions" in response.json()["error"]["message"]

    def test_an_unknown_model_is_a_404(self, server: RunningServer) -> None:
        response = server.client.post(
            "/v1/chat/completions", json={**chat_body("x"), "model": "gpt-9"}
        )
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert server.client.get("/v1/models/gpt-9").status_code == 404

    def test_an_unknown_route_or_method_is_shaped_alike(self, server: RunningServer) -> None:
        assert server.client.get("/v2/nothing").json()["error"]["code"] == "not_found"
        assert server.client.get("/v1/completions").status_code == 405

    def test_an_unsupported_field_is_named(self, server: RunningServer) -> None:
        response = server.client.post("/v1/chat/completions", json=chat_body("x", best_of=2))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "best_of"


class TestI1Disconnect:
    """A client that goes away frees its blocks at once, whichever way it asked."""

    @pytest.mark.parametrize("streaming", [False, True])
    def test_frees_everything(self, slow_server: RunningServer, streaming: bool) -> None:
        aborted = slow_server.metric(names.REQUEST_SUCCESS, finished_reason="abort")
        body = {**raw_body("x", max_tokens=900), "stream": streaming}
        clients = [httpx.Client(base_url=slow_server.url, timeout=20) for _ in range(5)]

        def leave_early(client: httpx.Client) -> None:
            timeout = httpx.Timeout(5, read=0.2)
            with client.stream("POST", "/v1/completions", json=body, timeout=timeout) as response:
                next(response.iter_raw())

        def ask(client: httpx.Client) -> None:
            if streaming:
                leave_early(client)
            else:
                with pytest.raises(httpx.TimeoutException):
                    leave_early(client)
            client.close()

        with ThreadPoolExecutor(5) as pool:
            list(pool.map(ask, clients))
        wait_for(lambda: is_idle(slow_server), within_s=1)
        assert slow_server.metric(names.REQUEST_SUCCESS, finished_reason="abort") == aborted + 5
        answer = slow_server.client.post("/v1/completions", json=raw_body("x", max_tokens=2))
        assert answer.status_code == 200


class TestJ1J2MetricsAfterAborts:
    def test_sums_agree_and_gauges_are_zero(self) -> None:
        with serve_fake(before_result=pace(), scripts=SCRIPTS) as server:
            server.client.post("/v1/chat/completions", json=chat_body("greet"))
            with server.client.stream(
                "POST", "/v1/completions", json={**raw_body("x", max_tokens=900), "stream": True}
            ) as response:
                next(response.iter_raw())
            wait_for(lambda: is_idle(server))
            assert server.metric(names.REQUEST_SUCCESS) == 2
            assert server.metric(names.REQUEST_SUCCESS, finished_reason="abort") == 1
            assert server.metric(names.PROMPT_TOKENS) == server.metric(
                f"{names.REQUEST_PROMPT_TOKENS}_sum"
            )
            assert server.metric(names.GENERATION_TOKENS) == server.metric(
                f"{names.REQUEST_GENERATION_TOKENS}_sum"
            )


class TestI4TheLifeOfTheServer:
    def test_the_port_answers_while_the_model_loads(self) -> None:
        engine, may_end = make_fake_engine(), threading.Event()

        def load(progress: Callable[[str, float], None]) -> FakeEngine:
            progress("weights", 0.5)
            may_end.wait(20)
            return engine

        with RunningServer(load=load, wait_for="listening") as server:
            assert server.client.get("/health/live").status_code == 200
            assert server.client.get("/health").status_code == 200
            wait_for(lambda: server.client.get("/health/ready").json()["loading"]["share"] == 0.5)
            ready = server.client.get("/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (503, "loading")
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
                refused = server.client.request(method, path, json={})
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) > 0
                assert refused.json()["error"]["code"] == "model_loading"
            assert server.metric(names.NUM_REQUESTS_RUNNING) == 0
            assert server.metric(names.CACHE_CONFIG_INFO) == 0
            may_end.set()
            server.wait_until_ready()
            assert server.client.get("/health/ready").status_code == 200
            assert server.metric(names.CACHE_CONFIG_INFO, num_gpu_blocks="257") == 1

    def test_shut_down_finishes_what_runs(self) -> None:
        with (
            serve_fake(before_result=pace()) as server,
            ThreadPoolExecutor(4) as pool,
        ):
            body = {**raw_body("x", max_tokens=150), "stream": True}
            answers = [
                pool.submit(lambda: chunks(server, "/v1/completions", body)) for _ in range(4)
            ]
            wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 4)
            server.shut_down()
            wait_for(lambda: server.client.get("/health/ready").status_code == 503)
            assert server.client.get("/health/live").status_code == 200
            refused = server.client.post("/v1/completions", json=raw_body("x"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            for answer in answers:
                assert answer.result()[-1]["choices"][0]["finish_reason"] == "length"
            assert server.join() == 0

    def test_shut_down_does_not_wait_for_ever(self) -> None:
        with serve_fake(before_result=pace(0.02), drain_s=0.1) as server:
            body = {**raw_body("x", max_tokens=900), "stream": True}
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(lambda: stream(server, "/v1/completions", body))
                wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 1)
                server.shut_down()
                assert "shutting down" in json.loads(answer.result()[-1])["error"]["message"]
            assert server.join() == 0

    def test_the_death_of_the_engine_ends_the_process(self) -> None:
        def die(scheduled: Any) -> None:
            if scheduled.step == 3:
                raise MemoryError("no more")

        with serve_fake(before_result=die) as server:
            response = server.client.post("/v1/completions", json=raw_body("x"))
            assert response.status_code == 500
            assert server.client.get("/health/live").status_code == 503
            assert server.client.get("/health/ready").status_code == 503
            assert server.client.post("/v1/completions", json=raw_body("x")).status_code == 503
            assert server.join() == 1
            assert server.server.failure is not None


def test_a_mistake_of_ours_is_a_500_without_its_details(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a detail of ours")

    served = server.server.state.served
    assert served is not None
    monkeypatch.setattr(type(served.prompts), "encode_prompt", fail)
    response = server.client.post("/v1/completions", json=raw_body("greet"))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "detail" not in response.text
    monkeypatch.undo()
    assert server.client.post("/v1/completions", json=raw_body("greet")).status_code == 200


class TestLimitsAndKeys:
    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
    def test_a_body_that_a_web_page_could_send_unasked_is_a_415(
        self, kind: str, server: RunningServer
    ) -> None:
        body = json.dumps(raw_body("greet")).encode()
        response = server.client.post(
            "/v1/completions", content=body, headers={"content-type": kind}
        )
        assert response.status_code == 415
        assert "application/json" in response.json()["error"]["message"]

    def test_a_body_that_is_too_large_is_a_413(self, server: RunningServer) -> None:
        response = server.client.post(
            "/v1/completions",
            content=b"x" * (16 * 2**20 + 1),
            headers={"content-type": "application/json"},
        )
        assert response.status_code == 413

    def test_keys_are_asked_for_everywhere_but_health_and_metrics(self, tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("sesame\n")
        with serve_fake(scripts=SCRIPTS, api_key_file=tmp_path / "keys") as server:
            for path in ("/health", "/health/live", "/health/ready", "/metrics"):
                assert server.client.get(path).status_code == 200
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                for path in ("/v1/models", "/v1/nothing", "/tokenize"):
                    response = server.client.get(path, headers=headers)
                    assert response.status_code == 401
                    assert response.json()["error"]["code"] == "invalid_api_key"
            headers = {"Authorization": "Bearer sesame"}
            assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_small_pieces_are_sent_at_once(server: RunningServer) -> None:
    """Head and body of an answer are two pieces; one that waits costs 40 ms on Linux."""
    times_s = []
    for _ in range(20):
        started_s = time.perf_counter()
        assert server.client.get("/health/live").status_code == 200
        times_s.append(time.perf_counter() - started_s)
    assert min(times_s[5:]) < 0.02


def test_models_say_their_context(server: RunningServer) -> None:
    (row,) = server.client.get("/v1/models").json()["data"]
    assert (row["id"], row["max_model_len"]) == (MODEL, 1024)
    assert server.client.get(f"/v1/models/{MODEL}").json() == row


def test_tokenize(server: RunningServer) -> None:
    answer = server.client.post("/tokenize", json={"prompt": "the<|im_end|>"}).json()
    assert answer == {"tokens": [ord("t"), 259, IM_END], "count": 3, "max_model_len": 1024}
    chat = server.client.post("/tokenize", json={"messages": chat_body("greet")["messages"]}).json()
    usage = server.client.post("/v1/chat/completions", json=chat_body("greet")).json()["usage"]
    assert chat["count"] == usage["prompt_tokens"]
    assert server.client.post("/tokenize", json={}).status_code == 400


def test_token_ids_as_prompt(server: RunningServer) -> None:
    tokens = server.client.post("/tokenize", json={"prompt": "greet" + RAW_PROMPT_END}).json()
    body = {"model": MODEL, "prompt": tokens["tokens"], "max_tokens": 30}
    answer = server.client.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == "Hello, world."


def test_two_clients_share_steps(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    with serve_fake(before_result=pace(), step_log=log) as server, ThreadPoolExecutor(2) as pool:
        bodies = [raw_body(letter, max_tokens=100) for letter in "ab"]
        list(pool.map(lambda body: server.client.post("/v1/completions", json=body), bodies))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(line["tokens"] == [1, 1] for line in lines)
    assert all(line["running"] <= 2 for line in lines)


class TestTheOpenAiClient:
    def test_whole_and_streamed(self, server: RunningServer) -> None:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "greet"}]
            answer = client.chat.completions.create(model=MODEL, messages=messages)
            assert answer.choices[0].message.content == "Hello, world."
            events = client.chat.completions.create(
                model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
            )
            text, usage = "", None
            for event in events:
                text += "".join(choice.delta.content or "" for choice in event.choices)
                usage = event.usage or usage
            assert text == "Hello, world."
            assert usage is not None
            assert usage.completion_tokens == 14
            completion = client.completions.create(
                model=MODEL, prompt="greet" + RAW_PROMPT_END, max_tokens=5
            )
            assert completion.choices[0].text == "Hello"
            assert [model.id for model in client.models.list()] == [MODEL]

    def test_errors_are_the_clients_own(self, server: RunningServer) -> None:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "greet"}]
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(model=MODEL, messages=messages, n=999)
            assert caught.value.param == "n"
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model="other", messages=messages)
