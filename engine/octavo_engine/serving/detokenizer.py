"""Text from tokens as they come, and the end of a text at a stop string.

    tokens ─► Detokenizer ─► text ─► StopMatcher ─► text that may be shown

A character may be spread over several tokens, and a stop string over several characters: both
stages hold back exactly what is still undecided and nothing more.
"""

import codecs
from collections.abc import Sequence

from octavo_engine.serving.tokenizer import Tokenizer


class Detokenizer:
    """Turns one sequence's tokens into text, whole characters at a time.

    Bytes that can never become a character turn into U+FFFD; an incomplete character at the very
    end is dropped, so the pieces always concatenate to the same text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_control: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.control_ids if skip_control else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes, often none for the first bytes of an emoji."""
        if token_id in self._hidden:
            return ""
        return self.push_prompt(token_id)

    def push_prompt(self, token_id: int) -> str:
        """The same for a prompt that is told as it came, with its control tokens."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))


class StopMatcher:
    """Finds the first stop string that completes, whatever the pieces the text comes in."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """`stops` are not empty strings; `include_stop` shows the one that was found."""
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that can no longer be part of a stop. After a match there is none."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        window = self._held + text
        places = ((window.find(stop), stop) for stop in self._stops)
        found = [(start + len(stop), start, stop) for start, stop in places if start >= 0]
        if found:
            end, start, self.matched = min(found)
            self._held = ""
            return window[: end if self._include_stop else start]
        undecided = max(_longest_proper_prefix_at_end(window, stop) for stop in self._stops)
        self._held = window[len(window) - undecided :]
        return window[: len(window) - undecided]

    def flush(self) -> str:
        """What was held back, once it is certain that no more text comes."""
        held, self._held = self._held, ""
        return held


def _longest_proper_prefix_at_end(text: str, stop: str) -> int:
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
