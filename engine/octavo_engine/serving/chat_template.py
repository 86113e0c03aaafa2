"""Chat templates: messages to a prompt, with the user's own words kept apart from the markup.

A template is a Jinja program that comes with the model. It runs in a sandbox, its output is
bounded, and what it complains about becomes a 400. Before rendering, every place in a message that
could be read as a control token is broken by a guard character that occurs nowhere else; so a
control token in the rendered text is the template's own, and the guard is removed afterwards.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import jinja2
import jinja2.meta
import jinja2.sandbox

from octavo_engine.errors import InvalidRequest
from octavo_engine.serving.tokenizer import Segment, Tokenizer, control_token_pattern

Message = Mapping[str, Any]
# A template repeats its input a few times at most; beyond this it runs away.
_MAX_OUTPUT_FACTOR: Final = 8
_MAX_OUTPUT_FLOOR: Final = 1 << 20
# Noncharacters: no text is meant to hold them. The second range is for texts that do.
_GUARDS: Final = (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xF0100))


class ChatTemplate:
    """A model's chat template, compiled once."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        # A token of one character could not be broken by a guard; none is markup in any model.
        self._control_tokens = [token for token in tokenizer.control_tokens if len(token) > 1]
        self._pattern = control_token_pattern(self._control_tokens)
        spec = tokenizer.spec
        self._tokens = {
            "bos_token": "" if spec.bos_token_id is None else spec.tokens[spec.bos_token_id],
            "eos_token": "" if spec.eos_token_id is None else spec.tokens[spec.eos_token_id],
        }
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._source = source
        self._broken: str | None = None
        self.knows_tools = False
        try:
            self._template = environment.from_string(source)
            names = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self.knows_tools = "tools" in names
        except jinja2.TemplateError as error:
            # The model still completes raw prompts, so this is told to those who chat.
            self._broken = str(error)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[Segment]:
        """The prompt of a conversation. Raises InvalidRequest with the template's complaint."""
        if self._broken is not None:
            raise InvalidRequest(
                f"The model's chat template cannot be used: {self._broken}", param="messages"
            )
        if tools and not self.knows_tools:
            raise InvalidRequest(
                "The model's chat template has no place for tools; leave them out", param="tools"
            )
        texts = _texts([*messages, *tools])
        guard = _choose_guard([self._source, *texts])
        guarded = [self._guard_values(message, guard) for message in messages]
        guarded_tools = [self._guard_values(tool, guard) for tool in tools]
        # `messages` can be large, so its size is the measure of what the output may be.
        limit = max(_MAX_OUTPUT_FLOOR, _MAX_OUTPUT_FACTOR * sum(map(len, texts)))
        try:
            pieces: list[str] = []
            size = 0
            for piece in self._template.generate(
                messages=guarded,
                add_generation_prompt=add_generation_prompt,
                tools=guarded_tools or None,
                documents=None,
                **self._tokens,
            ):
                size += len(piece)
                if size > limit:
                    raise InvalidRequest(
                        "The chat template made far more text than the messages hold.",
                        param="messages",
                    )
                pieces.append(piece)
        except jinja2.TemplateError as error:
            raise InvalidRequest(str(error), param="messages") from None
        except (
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            IndexError,
            OverflowError,
            RecursionError,
            ArithmeticError,
        ) as error:
            raise InvalidRequest(
                f"The model's chat template cannot render these messages: {error}",
                param="messages",
            ) from None
        return self._segments("".join(pieces), guard)

    def _guard_values(self, value: Any, guard: str) -> Any:
        if isinstance(value, str):
            return self._guard_text(value, guard)
        if isinstance(value, Mapping):
            # Templates compare roles and types, and the API knows a few only, none of them markup.
            return {
                self._guard_key(key, guard): item
                if key in ("role", "type")
                else self._guard_values(item, guard)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._guard_values(item, guard) for item in value]
        return value

    def _guard_key(self, key: str, guard: str) -> str:
        """Keys of a tool's parameters are text as well; names that templates read stay whole."""
        is_name = key.isidentifier() and not self._pattern.search(key)
        return key if is_name else self._guard_text(key, guard)

    def _guard_text(self, text: str, guard: str) -> str:
        """Break every control token in `text`, and those that its ends could be a part of."""
        while self._pattern.search(text):
            text = self._pattern.sub(lambda match: match[0][0] + guard + match[0][1:], text)
        tail = max((_overlap(text, token) for token in self._control_tokens), default=0)
        if tail:
            cut = len(text) - tail + 1
            text = text[:cut] + guard + text[cut:]
        if text and any(_could_go_on(token, text) for token in self._control_tokens):
            text = guard + text
        return text

    def _segments(self, rendered: str, guard: str) -> list[Segment]:
        """Control tokens of the template as markup, all else as text, without the guard."""
        segments: list[Segment] = []
        at = 0
        for match in self._pattern.finditer(rendered):
            if text := _without(guard, rendered[at : match.start()]):
                segments.append(Segment(text=text, markup=False))
            segments.append(Segment(text=match[0], markup=True))
            at = match.end()
        if text := _without(guard, rendered[at:]):
            segments.append(Segment(text=text, markup=False))
        return segments


def _overlap(text: str, token: str) -> int:
    """Characters of the longest proper prefix of `token` that `text` ends with."""
    longest = min(len(token) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(token[:n])), 0)


def _could_go_on(token: str, text: str) -> bool:
    """Whether `text`, after the first characters of `token`, would end it or be a part of it."""
    rests = (token[at:] for at in range(1, len(token)))
    return any(text.startswith(rest) or rest.startswith(text) for rest in rests)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for key, item in value.items() for text in [key, *_texts(item)]]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    return []


def _escaped(guard: str) -> str:
    """The guard as JSON in ASCII writes it, for templates that ask for that."""
    return json.dumps(guard)[1:-1]


def _without(guard: str, text: str) -> str:
    return text.replace(guard, "").replace(_escaped(guard), "")


def _choose_guard(texts: Sequence[str]) -> str:
    for code in _GUARDS:
        guard = chr(code)
        if not any(guard in text or _escaped(guard) in text for text in texts):
            return guard
    raise InvalidRequest(
        "The messages hold too many noncharacters of Unicode to be told apart from markup.",
        param="messages",
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which models were not trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
