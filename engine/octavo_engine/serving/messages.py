"""Messages and tools of a chat, as they come over the wire and as templates read them."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from octavo_engine.errors import InvalidRequest

# To name one wrong item is enough; a list of a million of them is not looked through.
LISTED = Field(fail_fast=True)


class Strict(BaseModel):
    """Nothing is converted, and nothing unknown is let through."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    def check(self) -> None:
        """Raise InvalidRequest for fields that are right alone and wrong together."""


def _without_nulls(value: Any) -> Any:
    """A field that is null is a field left out; answers are sent back with all of their nulls."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value


class TextPart(Strict):
    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    arguments: str


class ToolCall(Strict):
    """A call that an assistant made earlier in the conversation."""

    id: Annotated[str, StringConstraints(max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


class FunctionDescription(Strict):
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A function that the model may be told of."""

    type: Literal["function"]
    function: FunctionDescription

    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class ChatMessage(Strict):
    # A template puts the role into its markup, so a role of the caller's own could become markup.
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], LISTED] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_call_id: Annotated[str, StringConstraints(max_length=256)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return _without_nulls(value)

    def check(self, where: str = "messages") -> None:
        """`where` is the message's place in the request."""
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(f"{where}.content: a message needs text", param=f"{where}.content")
        if self.tool_calls and self.role != "assistant":
            raise InvalidRequest(
                f"{where}.tool_calls: only the assistant calls tools", param=f"{where}.tool_calls"
            )
        if self.tool_call_id is not None and self.role != "tool":
            raise InvalidRequest(
                f"{where}.tool_call_id: only a message of the role tool answers a call",
                param=f"{where}.tool_call_id",
            )
        for index, call in enumerate(self.tool_calls or []):
            _read_arguments(call, f"{where}.tool_calls.{index}.function.arguments")

    def for_template(self) -> dict[str, Any]:
        """The message as templates read it.

        Parts are joined, for templates of text models read `content` as one string. Arguments of
        calls are objects: templates write them as JSON themselves. `developer` is OpenAI's newer
        word for `system`, and no template knows it.
        """
        text = self.content
        if isinstance(text, list):
            text = "".join(part.text for part in text)
        role = "system" if self.role == "developer" else self.role
        fields: dict[str, Any] = {"role": role, "content": text}
        if self.name is not None:
            fields["name"] = self.name
        if self.tool_call_id is not None:
            fields["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {
                        "name": call.function.name,
                        "arguments": _read_arguments(call, "tool_calls"),
                    },
                }
                for call in self.tool_calls
            ]
        return fields


def _read_arguments(call: ToolCall, where: str) -> dict[str, Any]:
    """The object that a call's arguments are, an empty text being one without members."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
        json.dumps(arguments, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{where}: the arguments of a call are a JSON object", param=where)
    return arguments
