"""What a sequence changes in its logits before a token is chosen.

Order: biases, then masks (what is not allowed, what must not come before min_tokens), then
penalties. Each touches only the tokens that it names, so a row costs what it lists and not the
vocabulary; all but a list of allowed tokens, which has to blank the row first.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo_engine.core.messages import SamplingParams


def needs_counts(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def needs_adjustments(params: SamplingParams) -> bool:
    """Whether anything in `params` ever changes the logits; most requests change nothing."""
    return (
        bool(params.suppress_until_min_tokens and params.min_tokens)
        or bool(params.logit_bias)
        or params.allowed_token_ids is not None
        or needs_counts(params)
    )


class TokenCounts:
    """The distinct tokens that penalties look at, and how often each was generated.

    Prompt tokens that were never generated are listed with a count of 0: only the repetition
    penalty (Keskar 2019) sees them.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        self._places: dict[int, int] = {}
        self._ids: npt.NDArray[np.int64] = np.empty(64, dtype=np.int64)
        self._counts: npt.NDArray[np.float32] = np.zeros(64, dtype=np.float32)
        for token in prompt:
            self._place(token)
        for token in output:
            self.add(token)

    def add(self, token: int) -> None:
        """One more generated token."""
        place = self._place(token)  # may move the arrays
        self._counts[place] += 1

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        return place

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        return self._counts[: len(self._places)]


class Adjustments:
    """Of one sequence: its parameters as tensors, made once, and its counts, kept up to date."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], device: str
    ) -> None:
        self.params = params
        self.counts: TokenCounts | None = None
        if needs_counts(params):
            seen = prompt if params.repetition_penalty != 1.0 else ()
            self.counts = TokenCounts(seen, output)
        self._suppressed = _ids(params.suppress_until_min_tokens, device)
        self._biased = _ids([token for token, _ in params.logit_bias], device)
        self._biases = torch.tensor(
            [bias for _, bias in params.logit_bias], dtype=torch.float32, device=device
        )
        allowed = params.allowed_token_ids
        self._allowed = None if allowed is None else _ids(allowed, device)

    def add(self, token: int) -> None:
        """One more generated token."""
        if self.counts is not None:
            self.counts.add(token)

    def bias_and_mask(self, logits: Tensor, num_generated: int) -> bool:
        """Change `logits` [vocabulary] in place; whether anything was to be done."""
        changed = False
        if len(self._biased):
            logits.index_add_(0, self._biased, self._biases)
            changed = True
        if self._allowed is not None:
            kept = logits[self._allowed]
            logits.fill_(-math.inf)
            logits[self._allowed] = kept
            changed = True
        if len(self._suppressed) and num_generated < self.params.min_tokens:
            logits[self._suppressed] = -math.inf
            changed = True
        return changed


def _ids(tokens: Collection[int], device: str) -> Tensor:
    return torch.tensor(list(tokens), dtype=torch.int64, device=device)


def adjust(logits: Tensor, rows: Sequence[tuple[int, int, Adjustments]]) -> list[int]:
    """Change `logits` [rows, vocabulary] in place; returns the rows in which anything changed.

    `rows` are (row, tokens generated so far, what to change).
    """
    changed = {row for row, generated, one in rows if one.bias_and_mask(logits[row], generated)}
    counted = [(row, one.params, one.counts) for row, _, one in rows if one.counts is not None]
    if counted:
        _penalize(logits, counted)
        changed.update(row for row, _, _ in counted)
    return sorted(changed)


def _penalize(logits: Tensor, rows: Sequence[tuple[int, SamplingParams, TokenCounts]]) -> None:
    """All rows at once, as one flat list of (row, token)."""
    sizes = [len(counts.ids) for _, _, counts in rows]

    def spread(values: list[float]) -> npt.NDArray[np.float32]:
        return np.repeat(np.array(values, dtype=np.float32), sizes)

    def tensor(array: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(logits.device)

    number = np.concatenate([counts.counts for _, _, counts in rows])
    minus = number * spread([params.frequency_penalty for _, params, _ in rows])
    minus += (number > 0) * spread([params.presence_penalty for _, params, _ in rows])
    factor = tensor(spread([params.repetition_penalty for _, params, _ in rows]))
    where = (
        tensor(np.repeat(np.array([row for row, _, _ in rows], dtype=np.int64), sizes)),
        tensor(np.concatenate([counts.ids for _, _, counts in rows])),
    )
    values = logits[where]
    logits[where] = torch.where(values > 0, values / factor, values * factor) - tensor(minus)
