"""What surrounds a request: its time, its name, keys, limits, and the access log."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.http import chat_body, chunks, is_idle, raw_body, stream, wait_for
from support.serving import RunningServer, as_tokens, make_fake_engine, pace, serve_fake

SCRIPTS = {"greet": as_tokens("Hello, world.")}


class TestTimeouts:
    """At its deadline a request ends with what it has, or with a 504 if it has nothing."""

    def test_what_is_there_is_kept(self) -> None:
        with serve_fake(before_result=pace()) as server:
            headers = {"X-Request-Timeout": "0.2"}
            body = raw_body("x", max_tokens=900, n=2)
            answer = server.client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
            for choice in answer.json()["choices"]:
                assert choice["finish_reason"] == "length"
                assert 0 < len(choice["text"]) < 900
            wait_for(functools.partial(is_idle, server))

    def test_one_that_waits_is_a_504(self) -> None:
        settings = {"request_timeout_seconds": 0.1}
        with (
            serve_fake(max_num_seqs=1, before_result=pace(0.5), settings=settings) as server,
            ThreadPoolExecutor(3) as pool,
        ):
            answers = list(
                pool.map(
                    lambda _: server.client.post("/v1/completions", json=raw_body("x" * 9)),
                    range(3),
                )
            )
            assert 504 in {answer.status_code for answer in answers}
            refused = next(answer for answer in answers if answer.status_code == 504)
            assert refused.json()["error"]["code"] == "deadline_exceeded"
            wait_for(functools.partial(is_idle, server))

    def test_streamed_it_ends_with_a_reason(self) -> None:
        with serve_fake(before_result=pace(), settings={"request_timeout_seconds": 0.2}) as server:
            parts = chunks(server, "/v1/chat/completions", chat_body("x", max_tokens=900))
            reasons = [choice["finish_reason"] for part in parts for choice in part["choices"]]
            assert [reason for reason in reasons if reason] == ["length"]

    def test_streamed_without_a_token_it_is_an_error_event(self) -> None:
        settings = {"request_timeout_seconds": 0.1}
        with serve_fake(before_result=pace(0.5), settings=settings, max_num_seqs=1) as server:
            with ThreadPoolExecutor(1) as pool:
                first = pool.submit(
                    lambda: server.client.post("/v1/completions", json=raw_body("x", max_tokens=9))
                )
                last = stream(server, "/v1/completions", raw_body("y", max_tokens=9))[-1]
                first.result()
            assert "deadline_exceeded" in last or last == "[DONE]"

    def test_the_server_s_limit_is_the_ceiling(self) -> None:
        with serve_fake(before_result=pace(), settings={"request_timeout_seconds": 0.2}) as server:
            answer = server.client.post(
                "/v1/completions",
                json=raw_body("x", max_tokens=900),
                headers={"X-Request-Timeout": "60"},
            )
            assert answer.json()["usage"]["completion_tokens"] < 900

    @pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", ""])
    def test_nonsense_is_refused(self, value: str) -> None:
        with serve_fake(scripts=SCRIPTS) as server:
            answer = server.client.post(
                "/v1/completions", json=raw_body("greet"), headers={"X-Request-Timeout": value}
            )
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "X-Request-Timeout"


class TestD3MaxTokensPolicy:
    def test_clamp_cuts_what_reject_refuses(self) -> None:
        for policy, status in (("reject", 400), ("clamp", 200)):
            settings = {"max_tokens_policy": policy}
            with serve_fake(max_model_len=128, settings=settings) as server:
                answer = server.client.post(
                    "/v1/chat/completions", json=chat_body("hello", max_tokens=1000)
                )
                assert answer.status_code == status
                if status == 200:
                    assert answer.json()["usage"]["total_tokens"] == 128
                long = server.client.post("/v1/chat/completions", json=chat_body("x" * 200))
                assert long.json()["error"]["code"] == "context_length_exceeded"


class TestPriority:
    def test_reaches_the_scheduler_for_each_choice(self) -> None:
        engine = make_fake_engine()
        seen: list[int] = []
        add = engine.scheduler.add
        engine.scheduler.add = lambda spec: (seen.append(spec.priority), add(spec))[1]  # type: ignore[method-assign]
        with RunningServer(load=lambda _: engine) as server:
            body = raw_body("x", max_tokens=1, n=2, priority=-3)
            assert server.client.post("/v1/completions", json=body).status_code == 200
        assert seen == [-3, -3]

    @pytest.mark.parametrize("make", [chat_body, raw_body])
    def test_is_refused_where_it_would_have_no_effect(self, make: Any) -> None:
        path = "/v1/chat/completions" if make is chat_body else "/v1/completions"
        with serve_fake(settings={"priority_wait_seconds": 0.0}) as server:
            refused = server.client.post(path, json=make("x", max_tokens=1, priority=-1))
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "priority")
            assert "leave priority out" in error["message"]
            for fields in ({}, {"priority": 0}, {"priority": None}):
                body = make("x", max_tokens=1, **fields)
                assert server.client.post(path, json=body).status_code == 200


class TestD7RequestIds:
    def test_come_back_and_are_made_where_none_is_given(self) -> None:
        with serve_fake(scripts=SCRIPTS) as server:
            body = raw_body("greet", max_tokens=2)
            named = server.client.post(
                "/v1/completions", json=body, headers={"X-Request-Id": "mine-1"}
            )
            assert named.headers["x-request-id"] == "mine-1"
            assert "mine-1" not in named.text
            made = {
                server.client.get(path).headers["x-request-id"]
                for path in ("/v1/models", "/v1/models", "/v9", "/health")
            }
            assert len(made) == 4
            streamed = {"headers": {"X-Request-Id": "s"}, "json": {**body, "stream": True}}
            with server.client.stream("POST", "/v1/completions", **streamed) as response:  # type: ignore[arg-type]
                assert response.headers["x-request-id"] == "s"

    @pytest.mark.parametrize("value", ["a b", "x" * 129, ""])
    def test_one_that_could_not_stand_in_a_log_is_replaced(self, value: str) -> None:
        with serve_fake() as server:
            answer = server.client.get("/v1/models", headers={"X-Request-Id": value})
            assert answer.headers["x-request-id"] not in ("", value)


class TestAccessLog:
    def test_a_line_for_each_request_without_its_words(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with serve_fake(scripts=SCRIPTS, settings={"access_log": True}) as server:
            server.client.get("/metrics")
            server.client.get("/health/ready")
            server.client.post(
                "/v1/completions",
                json=raw_body("my secret greet", max_tokens=2),
                headers={"X-Request-Id": "abc"},
            )
            server.client.get("/v1/models/%0Aforged%20line")
        # A line may come after the answer that it tells of, and none after the server's end.
        lines = server.lines + capfd.readouterr().err.splitlines()
        logged = [line for line in lines if " id=" in line]
        assert len(logged) == 2
        assert "POST /v1/completions 200 " in logged[0]
        assert logged[0].endswith(" ms id=abc")
        assert "GET /v1/models/\\nforged line 404 " in logged[1]
        assert "secret" not in "".join(lines)

    def test_none_unless_asked_for(self, capfd: pytest.CaptureFixture[str]) -> None:
        with serve_fake(scripts=SCRIPTS) as server:
            server.client.get("/v1/models")
        lines = server.lines + capfd.readouterr().err.splitlines()
        assert not any(" id=" in line for line in lines)


@pytest.mark.parametrize("metrics_need_key", [False, True])
def test_keys_are_asked_for_everywhere_but_health(tmp_path: Path, metrics_need_key: bool) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    settings = {"metrics_need_key": metrics_need_key}
    with serve_fake(api_key_file=tmp_path / "keys", settings=settings) as server:
        get = server.client.get
        for path in ("/health", "/health/live", "/health/ready"):
            assert get(path).status_code == 200
        assert get("/metrics").status_code == (401 if metrics_need_key else 200)
        for path in ("/version", "/openapi.json", "/v1/models", "/healthy", "/health/", "/"):
            assert get(path).status_code == 401
        for path in ("/v1/embeddings", "/detokenize", "/v1/chat/completions"):
            assert server.client.post(path, json={}).status_code == 401
        key = {"Authorization": "Bearer sesame"}
        assert get("/metrics", headers=key).status_code == 200
        assert get("/openapi.json", headers=key).status_code == 200
