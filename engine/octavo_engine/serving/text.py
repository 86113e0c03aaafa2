"""From a sequence's updates to the text that its reader may see. Pure: no clock, no I/O."""

from dataclasses import dataclass

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason, SequenceUpdate
from octavo_engine.serving.detokenizer import Detokenizer, StopMatcher
from octavo_engine.serving.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """New text, often empty; `finish_reason` is set once, with the last delta."""

    text: str
    finish_reason: FinishReason | None = None
    error: str | None = None


class TextAssembler:
    """One choice of an answer: its text so far is the concatenation of its deltas."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        *,
        stops: list[str],
        include_stop: bool = False,
        skip_control: bool = True,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_control=skip_control)
        self._matcher = StopMatcher(stops, include_stop=include_stop)
        self._min_tokens = sampling.min_tokens
        self.num_tokens = 0  # generated, the one that ended the text included
        self.num_cached_tokens = 0

    def push(self, update: SequenceUpdate) -> TextDelta:
        """A delta whose finish reason is STOP without a record means: end the request."""
        self.num_cached_tokens = update.num_cached_tokens
        record = update.record
        ended_by_token = record is not None and record.finish_reason is FinishReason.STOP
        shown = update.new_token_ids[:-1] if ended_by_token else update.new_token_ids
        pieces = []
        for token_id in shown:
            self.num_tokens += 1
            text = self._detokenizer.push(token_id)
            # A stop counts only where it lies wholly behind the first min_tokens tokens.
            if self.num_tokens <= self._min_tokens:
                pieces.append(text)
                continue
            pieces.append(self._matcher.push(text))
            if self._matcher.matched is not None:
                return TextDelta(text="".join(pieces), finish_reason=FinishReason.STOP)
        if record is None:
            return TextDelta(text="".join(pieces))
        self.num_tokens += ended_by_token
        pieces.append(self._matcher.flush())
        return TextDelta(
            text="".join(pieces), finish_reason=record.finish_reason, error=record.error
        )
