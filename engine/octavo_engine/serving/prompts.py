"""From a request's words to token ids, refused early when they can never fit."""

from collections.abc import Sequence

from octavo_engine.config import ModelDescription
from octavo_engine.errors import ContextTooLong, InvalidRequest
from octavo_engine.serving.chat_template import ChatTemplate
from octavo_engine.serving.messages import ChatMessage, Tool
from octavo_engine.serving.text import Echo
from octavo_engine.serving.tokenizer import Tokenizer


class PromptEncoder:
    """Knows the model's tokenizer and template. Its methods may run in any thread."""

    def __init__(self, model: ModelDescription) -> None:
        """Raises CannotStart when the tokenizer cannot be built."""
        self.tokenizer = Tokenizer(model.tokenizer)
        self._max_model_len = model.max_model_len
        source = model.tokenizer.chat_template
        self._template = ChatTemplate(source, self.tokenizer) if source else None

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Tool] = (),
    ) -> list[int]:
        """Raises InvalidRequest with the template's complaint, or ContextTooLong."""
        if self._template is None:
            raise InvalidRequest(
                "This model has no chat template; use /v1/completions with a whole prompt",
                param="messages",
            )
        segments = self._template.render(
            [message.for_template() for message in messages],
            add_generation_prompt=add_generation_prompt,
            tools=[tool.for_template() for tool in tools],
        )
        self._check_size("".join(segment.text for segment in segments), "messages")
        return self.tokenizer.encode_segments(segments)

    def encode_prompt(
        self, prompt: str | list[int], *, add_special_tokens: bool = True
    ) -> list[int]:
        """A raw prompt: text in which control tokens are meant, or token ids as they are."""
        if not isinstance(prompt, str):
            return self.check_ids(prompt, "prompt")
        self._check_size(prompt, "prompt")
        if not add_special_tokens:
            return self.tokenizer.encode_markup(prompt)
        ids = self.tokenizer.encode_prompt(prompt)
        if not ids:
            raise InvalidRequest(
                "prompt is empty, and this model has no token to begin with", param="prompt"
            )
        return ids

    def check_ids(self, ids: list[int], field: str) -> list[int]:
        """The ids as they are. Raises InvalidRequest for none, or for one that is no token."""
        if not ids:
            raise InvalidRequest(f"{field} holds an empty list of tokens", param=field)
        vocab_size = self.tokenizer.vocab_size
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"{field} holds the token {token_id}; this model's are 0 to {vocab_size - 1}",
                    param=field,
                )
        return ids

    def make_echo(self, prompt: str | list[int], ids: list[int]) -> Echo:
        """The prompt to be told before its answer; a BOS that nobody wrote is not shown."""
        spec = self.tokenizer.spec
        bos = spec.bos_token_id
        if not isinstance(prompt, str) or bos is None or ids[0] != bos:
            return Echo(token_ids=ids)
        return Echo(token_ids=ids, num_hidden=int(not prompt.startswith(spec.tokens[bos])))

    def _check_size(self, text: str, field: str) -> None:
        """Spare the tokenizer megabytes that cannot fit whatever their tokens are."""
        fewest = self.tokenizer.fewest_tokens(text)
        if fewest >= self._max_model_len:
            raise ContextTooLong(
                f"This model's maximum context length is {self._max_model_len} tokens. However, "
                f"your {field} hold {len(text)} characters, which are at least {fewest} tokens. "
                f"Please reduce the length of the {field}.",
                param=field,
            )
