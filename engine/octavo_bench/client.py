"""One server over HTTP: requests with their times taken, and the questions asked before a run."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import aiohttp

from octavo_bench.errors import BenchError
from octavo_bench.events import DONE, Chunk, EventSplitter, Usage, parse_chunk
from octavo_bench.prompts import Calibration, calibrate, make_probes
from octavo_bench.records import Failure, Record
from octavo_bench.workload import Job

Endpoint = Literal["completions", "chat"]
_PROBE_TIMEOUT_S: Final = 120.0
_MAX_DETAIL: Final = 300
# Servers close idle connections, many after 5 s; a connection that is closed just as a request is
# put on it would count as a failure of the server.
_KEEPALIVE_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """What all requests of a run have in common."""

    endpoint: Endpoint
    stream: bool
    temperature: float
    timeout_s: float
    ignore_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server said of itself; it goes into the report."""

    url: str
    model: str
    version: str | None
    max_model_len: int | None
    ignores_eos: bool  # whether answers have the length that was asked for
    prompt_lengths_by: Literal["tokenize", "usage"]


def open_session(api_key: str | None) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
    return aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=None)
    )


@dataclass(slots=True)
class _Answer:
    """An answer as it comes in."""

    token_times_s: list[float] = field(default_factory=list)
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None

    def take(self, chunk: Chunk, now_s: float) -> None:
        if chunk.has_text:
            self.token_times_s.append(now_s)
        self.usage = chunk.usage or self.usage
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self.error = chunk.error or self.error


class Server:
    """A model at a URL. `prepare` is called before anything is sent."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        shape: RequestShape,
        model: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session = session
        self._url = url.rstrip("/").removesuffix("/v1")
        self._shape = shape
        self._model = model
        self._clock = clock
        self._ignore_eos = shape.ignore_eos
        self._calibration: Calibration | None = None

    @property
    def calibration(self) -> Calibration:
        assert self._calibration is not None, "prepare() comes first"
        return self._calibration

    async def prepare(self) -> ServerFacts:
        """Find the model, what the server takes, and how long words are. Raises BenchError."""
        found = await self._find_model()
        version = await self._ask("GET", "/version", needed=False)
        await self._find_whether_eos_can_be_ignored()
        by = await self._calibrate()
        return ServerFacts(
            url=self._url,
            model=str(self._model),
            version=None if version is None else str(version.get("version")),
            max_model_len=found.get("max_model_len"),
            ignores_eos=self._ignore_eos,
            prompt_lengths_by=by,
        )

    async def send(self, job: Job, prompt: str) -> Record:
        """Make one request; whatever goes wrong is in the record."""
        sent_s = self._clock()
        answer = _Answer()
        failure: str | None = None
        detail = ""
        try:
            async with asyncio.timeout(self._shape.timeout_s):
                failure, detail = await self._exchange(self._body(job, prompt), answer)
        except TimeoutError:
            failure = Failure.TIMEOUT
            detail = f"no complete answer in {self._shape.timeout_s:g} s"
        except aiohttp.ClientConnectorError as error:
            failure, detail = Failure.CONNECT, str(error)
        except (aiohttp.ClientError, ConnectionError) as error:
            failure, detail = Failure.DISCONNECTED, str(error) or type(error).__name__
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            failure, detail = Failure.MALFORMED, str(error) or type(error).__name__
        usage = answer.usage
        return Record(
            sent_s=sent_s,
            ended_s=self._clock(),
            token_times_s=answer.token_times_s,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            finish_reason=answer.finish_reason,
            failure=failure,
            detail=detail[:_MAX_DETAIL],
            streamed=self._shape.stream,
        )

    async def _exchange(self, body: dict[str, Any], answer: _Answer) -> tuple[str | None, str]:
        """Fill `answer`; returns the kind of failure, or None, and its words."""
        async with self._session.post(self._url + self._path, json=body) as response:
            if response.status != 200:
                return f"http_{response.status}", await response.text(errors="replace")
            if not self._shape.stream:
                answer.take(parse_chunk(await response.read()), self._clock())
                return (Failure.ERROR_EVENT, answer.error) if answer.error else (None, "")
            splitter = EventSplitter()
            while piece := await response.content.readany():
                now_s = self._clock()
                for data in splitter.feed(piece):
                    if data == DONE:
                        return None, ""
                    answer.take(parse_chunk(data), now_s)
                    if answer.error is not None:
                        return Failure.ERROR_EVENT, answer.error
        return Failure.DISCONNECTED, "the stream ended without [DONE]"

    @property
    def _path(self) -> str:
        chat = self._shape.endpoint == "chat"
        return "/v1/chat/completions" if chat else "/v1/completions"

    def _body(self, job: Job, prompt: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": job.output_tokens,
            "temperature": self._shape.temperature,
            **self._asked(prompt),
        }
        if self._shape.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self._ignore_eos:
            body["ignore_eos"] = True
        return body

    def _asked(self, prompt: str) -> dict[str, Any]:
        if self._shape.endpoint == "chat":
            return {"messages": [{"role": "user", "content": prompt}]}
        return {"prompt": prompt}

    async def _find_model(self) -> dict[str, Any]:
        listed = await self._ask("GET", "/v1/models")
        assert listed is not None, "the answer was needed"
        rows = [row for row in listed.get("data") or [] if isinstance(row, dict)]
        names = [str(row.get("id")) for row in rows]
        if self._model is None:
            if len(names) != 1:
                raise BenchError(
                    f"{self._url} serves {len(names)} models: name one with --model "
                    f"({', '.join(names[:10]) or 'none is listed'})"
                )
            self._model = names[0]
        return next((row for row in rows if row.get("id") == self._model), {})

    async def _find_whether_eos_can_be_ignored(self) -> None:
        """Ask for one answer with `ignore_eos`; a server that refuses the field works without."""
        record = await self._probe()
        if record.failure == "http_400" and self._ignore_eos:
            self._ignore_eos = False
            record = await self._probe()
        if record.failure is not None:
            raise BenchError(
                f"{self._url} failed a first request: {record.failure} {record.detail}"
            )

    async def _probe(self, prompt: str = "A question:", output_tokens: int = 2) -> Record:
        return await self.send(
            Job(due_s=None, prompt_tokens=1, output_tokens=output_tokens), prompt
        )

    async def _calibrate(self) -> Literal["tokenize", "usage"]:
        probes = make_probes()
        counts = [await self._tokenized_length(probe) for probe in probes]
        known = [count for count in counts if count is not None]
        if len(known) == len(probes):
            self._calibration = calibrate(known)
            return "tokenize"
        records = [await self._probe(probe, 1) for probe in probes]
        lengths = [record.prompt_tokens for record in records if record.prompt_tokens]
        if len(lengths) != len(probes):
            words = next((f": {r.failure} {r.detail}" for r in records if r.failure), "")
            raise BenchError(
                f"{self._url} tells neither by /tokenize nor by `usage` how long a prompt is, so "
                f"prompts of a wanted length cannot be made{words}"
            )
        self._calibration = calibrate(lengths)
        return "usage"

    async def _tokenized_length(self, text: str) -> int | None:
        body = {"model": self._model, **self._asked(text)}
        answer = await self._ask("POST", "/tokenize", body, needed=False)
        count = None if answer is None else answer.get("count")
        return count if isinstance(count, int) else None

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, needed: bool = True
    ) -> dict[str, Any] | None:
        """The answer as an object; None, or BenchError where it is needed, if there is none."""
        try:
            async with (
                asyncio.timeout(_PROBE_TIMEOUT_S),
                self._session.request(method, self._url + path, json=body) as response,
            ):
                if response.status == 200:
                    answer = await response.json(content_type=None)
                    if isinstance(answer, dict):
                        return answer
                problem = f"answered {method} {path} with {response.status}"
                if response.status in (401, 403):
                    problem += "; give the API key with --api-key-file or OCTAVO_BENCH_API_KEY"
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            problem = f"does not answer: {error or type(error).__name__}"
        if needed:
            raise BenchError(f"{self._url} {problem}")
        return None
