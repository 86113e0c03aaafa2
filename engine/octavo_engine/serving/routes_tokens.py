"""The routes between text and tokens, which need no engine."""

from fastapi import Request
from starlette.responses import JSONResponse, Response

from octavo_engine.serving.http_input import aside, check_model, read_body
from octavo_engine.serving.protocol import DetokenizeRequest, TokenizeRequest, parse_request
from octavo_engine.serving.state import ServerState


class TokenRoutes:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def tokenize(self, http: Request) -> Response:
        served = self._state.require_served()
        body = await read_body(http)
        request = await aside(body, lambda: parse_request(TokenizeRequest, body))
        if request.model is not None:
            check_model(self._state, request.model)

        def encode() -> list[int]:
            if request.messages is not None:
                return served.prompts.encode_chat(
                    request.messages,
                    add_generation_prompt=request.add_generation_prompt,
                    tools=request.tools or (),
                )
            return served.prompts.encode_prompt(
                request.prompt or "", add_special_tokens=request.add_special_tokens
            )

        tokens = await aside(body, encode)
        return JSONResponse(
            {"tokens": tokens, "count": len(tokens), "max_model_len": served.model.max_model_len}
        )

    async def detokenize(self, http: Request) -> Response:
        served = self._state.require_served()
        body = await read_body(http)
        request = await aside(body, lambda: parse_request(DetokenizeRequest, body))
        if request.model is not None:
            check_model(self._state, request.model)
        prompts = served.prompts

        def decode() -> str:
            if not request.tokens:
                return ""
            ids = prompts.check_ids(request.tokens, "tokens")
            return prompts.tokenizer.decode(ids, skip_control=False)

        return JSONResponse({"prompt": await aside(body, decode)})
