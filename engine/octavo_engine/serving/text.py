"""From a sequence's updates to the text that its reader may see. Pure: no clock, no I/O."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_engine.core.messages import SamplingParams, TokenLogprob
from octavo_engine.core.request import FinishReason, SequenceUpdate
from octavo_engine.serving.detokenizer import Detokenizer, StopMatcher
from octavo_engine.serving.logprobs import PlacedToken
from octavo_engine.serving.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """A prompt that is told before the answer, without its first `num_hidden` tokens' text."""

    token_ids: list[int]
    num_hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """New text, often empty; `finish_reason` is set once, with the last delta.

    `tokens` are those that begin in the text of this delta, if log-probabilities are asked for.
    """

    text: str
    finish_reason: FinishReason | None = None
    error: str | None = None
    timed_out: bool = False  # with LENGTH: the request's time is up, and this is what there is
    tokens: Sequence[PlacedToken] = ()

    @property
    def says_something(self) -> bool:
        return bool(self.text or self.tokens)


class TextAssembler:
    """One choice of an answer: its text so far is the concatenation of its deltas.

    Deltas do not depend on how the tokens are spread over updates, but for where they are cut.
    With log-probabilities, tokens are told when text that they begin in is. So tokens of a stop
    text that is cut off are not told, nor is the stop token that ended the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        *,
        stops: list[str],
        include_stop: bool = False,
        skip_control: bool = True,
        echo: Echo | None = None,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_control=skip_control)
        self._matcher = StopMatcher(stops, include_stop=include_stop)
        self._include_stop = include_stop
        self._min_tokens = sampling.min_tokens
        self._has_logprobs = sampling.num_logprobs is not None
        self._echo = echo
        self._num_made = 0  # characters, what is held back included
        self._num_told = 0
        self._untold: deque[PlacedToken] = deque()
        self.prompt_logprobs: list[TokenLogprob] = []
        self.num_tokens = 0  # generated, the one that ended the text included
        self.num_cached_tokens = 0

    def push(self, update: SequenceUpdate) -> TextDelta:
        """A delta whose finish reason is STOP without a record means: end the request."""
        self.num_cached_tokens = update.num_cached_tokens
        self.prompt_logprobs += update.prompt_logprobs
        record = update.record
        pieces = []
        if self._echo is not None and (update.new_token_ids or record is not None):
            pieces.append(self._tell_echo(self._echo))
            self._echo = None
        ended_by_token = record is not None and record.finish_reason is FinishReason.STOP
        hides_last = ended_by_token and not self._include_stop and bool(update.new_token_ids)
        shown = update.new_token_ids[:-1] if hides_last else update.new_token_ids
        for index, token_id in enumerate(shown):
            self.num_tokens += 1
            text = self._detokenizer.push(token_id)
            if self._has_logprobs:
                self._place(token_id, update.logprobs[index])
            self._num_made += len(text)
            # A stop counts only where it lies wholly behind the first min_tokens tokens.
            if self.num_tokens <= self._min_tokens:
                pieces.append(text)
                continue
            pieces.append(self._matcher.push(text))
            if self._matcher.matched is not None:
                return self._delta(pieces, FinishReason.STOP)
        if record is None:
            return self._delta(pieces)
        self.num_tokens += hides_last
        pieces.append(self._matcher.flush())
        if record.is_deadline_exceeded:
            return self._delta(pieces, FinishReason.LENGTH, timed_out=True)
        return self._delta(pieces, record.finish_reason, record.error)

    def _tell_echo(self, echo: Echo) -> str:
        pieces = []
        for index, token_id in enumerate(echo.token_ids):
            if self._has_logprobs:
                known = 0 < index <= len(self.prompt_logprobs)  # none of the first, or of a failure
                self._place(token_id, self.prompt_logprobs[index - 1] if known else None)
            text = "" if index < echo.num_hidden else self._detokenizer.push_prompt(token_id)
            self._num_made += len(text)
            pieces.append(text)
        return "".join(pieces)

    def _place(self, token_id: int, logprob: TokenLogprob | None) -> None:
        self._untold.append(
            PlacedToken(token_id=token_id, text_offset=self._num_made, logprob=logprob)
        )

    def _delta(
        self,
        pieces: list[str],
        finish_reason: FinishReason | None = None,
        error: str | None = None,
        *,
        timed_out: bool = False,
    ) -> TextDelta:
        text = "".join(pieces)
        self._num_told += len(text)
        tokens: list[PlacedToken] = []
        # At an end without a stop text, tokens without text of their own are told as well: the
        # first bytes of a character that was cut, say.
        tells_all = finish_reason is not None and self._matcher.matched is None
        while self._untold and (tells_all or self._untold[0].text_offset < self._num_told):
            tokens.append(self._untold.popleft())
        return TextDelta(
            text=text,
            finish_reason=finish_reason,
            error=error,
            timed_out=timed_out,
            tokens=tuple(tokens),
        )
