"""The routes that generate text: from a checked request to choices, and to their answer."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import RequestSpec
from octavo_engine.errors import ContextTooLong, InvalidRequest
from octavo_engine.serving.answers import Answer, Choice, RenderPromptLogprobs
from octavo_engine.serving.api_options import ApiOptions
from octavo_engine.serving.http_input import aside, check_model, read_body, read_timeout_s
from octavo_engine.serving.logprobs import prompt_logprobs
from octavo_engine.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    parse_request,
)
from octavo_engine.serving.sampling import for_sibling, make_sampling
from octavo_engine.serving.shapes import ChatShape, CompletionShape, Shape
from octavo_engine.serving.sse import EventStream, until_disconnect
from octavo_engine.serving.state import Served, ServerState
from octavo_engine.serving.text import Echo, TextAssembler


class GenerateRoutes:
    def __init__(
        self, state: ServerState, options: ApiOptions, *, clock: Callable[[], float]
    ) -> None:
        self._state = state
        self._options = options
        self._clock = clock

    async def chat(self, http: Request) -> Response:
        served = self._state.require_served()
        deadline = self._start(http)
        body = await read_body(http)
        request = await aside(body, lambda: parse_request(ChatRequest, body))
        self._check(request)
        prompt = await aside(
            body,
            lambda: served.prompts.encode_chat(
                request.messages,
                add_generation_prompt=request.add_generation_prompt,
                tools=request.tools or (),
            ),
        )
        choices = self._make_choices(served, request, prompt, None, deadline, "messages")
        shape = ChatShape(served.prompts.tokenizer, num_logprobs=request.num_logprobs)
        return await self._answer(http, served, request, choices, shape)

    async def completions(self, http: Request) -> Response:
        served = self._state.require_served()
        deadline = self._start(http)
        body = await read_body(http)
        request = await aside(body, lambda: parse_request(CompletionRequest, body))
        self._check(request)
        encoder = served.prompts
        prompts = await aside(
            body, lambda: [encoder.encode_prompt(prompt) for prompt in request.prompts]
        )
        choices = []
        for written, prompt in zip(request.prompts, prompts, strict=True):
            echo = encoder.make_echo(written, prompt) if request.echo else None
            choices += self._make_choices(served, request, prompt, echo, deadline, "prompt")
        shape = CompletionShape(encoder.tokenizer, num_logprobs=request.num_logprobs)
        return await self._answer(http, served, request, choices, shape)

    def _start(self, http: Request) -> tuple[float, float | None]:
        """When the request came, and when it must end."""
        arrival_s = self._clock()
        timeout_s = read_timeout_s(http, ceiling_s=self._options.request_timeout_s)
        return arrival_s, None if timeout_s is None else arrival_s + timeout_s

    def _check(self, request: GenerationRequest) -> None:
        """Raises ModelNotServed, or InvalidRequest for what this server does not do."""
        check_model(self._state, request.model)
        if request.priority and not self._options.priority_wait_s:
            raise InvalidRequest(
                "This server answers requests in the order of their arrival "
                "(--priority-wait-seconds 0); leave priority out",
                param="priority",
            )

    def _make_choices(
        self,
        served: Served,
        request: GenerationRequest,
        prompt: list[int],
        echo: Echo | None,
        times_s: tuple[float, float | None],
        field: str,
    ) -> list[Choice]:
        """The choices for one prompt: the first computes it, and the others share its blocks."""
        sampling = make_sampling(
            request,
            served.model,
            num_prompt_tokens=len(prompt),
            prompt_field=field,
            max_tokens_policy=self._options.max_tokens_policy,
        )
        with _naming(field):
            served.check_admissible(len(prompt))
        arrival_s, deadline_s = times_s
        choices: list[Choice] = []
        for index in range(request.n):
            # Each choice tells its prompt's log-probabilities, so then each computes them.
            shares = index > 0 and sampling.num_prompt_logprobs is None
            spec = RequestSpec(
                request_id=uuid.uuid4().hex,
                prompt_token_ids=prompt,
                sampling=for_sibling(sampling, index),
                arrival_s=arrival_s,
                priority=request.priority,
                cache_salt=request.cache_salt,
                fork_of=choices[0].spec.request_id if shares else None,
                deadline_s=deadline_s,
            )
            text = _make_assembler(served, request, sampling, echo)
            choices.append(Choice(spec=spec, text=text, is_sibling=index > 0))
        return choices

    async def _answer(
        self,
        http: Request,
        served: Served,
        request: GenerationRequest,
        choices: list[Choice],
        shape: Shape,
    ) -> Response:
        options = request.stream_options
        answer = Answer(
            served.engine,
            choices,
            shape=shape,
            model_name=self._state.model_name,
            include_usage=options is not None and options.include_usage,
            render_prompt_logprobs=_prompt_logprobs_renderer(served, request),
        )

        async def whole() -> dict[str, Any]:
            await answer.admit()
            return await answer.whole()

        if not request.stream:
            return JSONResponse(await until_disconnect(http.receive, whole))
        await until_disconnect(http.receive, answer.admit)
        return EventStream(answer.frames(), on_end=answer.close)


def _make_assembler(
    served: Served, request: GenerationRequest, sampling: SamplingParams, echo: Echo | None
) -> TextAssembler:
    return TextAssembler(
        served.prompts.tokenizer,
        sampling,
        stops=request.stops,
        include_stop=request.include_stop_str_in_output,
        skip_control=request.skip_special_tokens,
        echo=echo,
    )


def _prompt_logprobs_renderer(
    served: Served, request: GenerationRequest
) -> RenderPromptLogprobs | None:
    num_top = request.prompt_logprobs
    if num_top is None:
        return None
    tokenizer = served.prompts.tokenizer
    return lambda text: prompt_logprobs(text.prompt_logprobs, tokenizer, num_top=num_top)


@contextlib.contextmanager
def _naming(field: str) -> Iterator[None]:
    """The scheduler knows lengths and no fields; the answer names the field."""
    try:
        yield
    except ContextTooLong as error:
        error.param = error.param or field
        raise
