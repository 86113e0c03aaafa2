"""From logits to tokens.

Order: biases and masks, penalties, then for rows that are not greedy: temperature, min_p, top_k,
top_p, choice. The choice needs one number in [0, 1) that is a function of (seed, position) alone,
so a sequence gets the same tokens in any batch, chunking or preemption that gives the same logits.
Log-probabilities are of the logits as the model gave them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo_engine.core.messages import SamplingParams, TokenLogprob
from octavo_engine.runner.adjustments import Adjustments, adjust
from octavo_engine.runner.logprobs import make_logprobs
from octavo_engine.runner.truncation import is_cut, least_kept

GREEDY_BELOW = 1e-5
# Rows whose distributions are in memory at once. Few, so that they stay in a CPU's cache and the
# allocator hands the same memory out again: 8 rows of 49152 tokens cost a third, row by row, of 32.
ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """How to choose the token at `position` of one sequence."""

    params: SamplingParams
    seed: int
    position: int
    num_generated: int
    adjustments: Adjustments | None = None  # there when `needs_adjustments(params)`


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Token of each row; `failed` maps rows that have no token to choose to why.

    `logprobs` maps rows that asked for them, and did not fail, to those of their token.
    """

    token_ids: list[int]
    failed: dict[int, str]
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same (seed, position) anywhere."""
    key = seed.to_bytes(16, "little", signed=True) + position.to_bytes(8, "little")
    bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


def find_failures(largest: Tensor) -> dict[int, str]:
    """Rows that are no distribution, by the largest logit of each: NaN, +inf, or nothing but −inf.

    Both argmax and amax take NaN for the largest.
    """
    return {
        index: f"the model's logits are not numbers (largest: {largest[index].item()})"
        for index in (~largest.isfinite()).nonzero().flatten().tolist()
    }


def sample(logits: Tensor, rows: Sequence[SamplerRow]) -> Sampled:
    """Choose a token for each row of `logits` [rows, vocabulary], fp32. Changes `logits`."""
    best = logits.argmax(-1)
    failed = find_failures(logits.gather(1, best.unsqueeze(1)).squeeze(1))
    asked = [i for i, row in enumerate(rows) if row.params.num_logprobs is not None]
    raw = logits[asked] if asked else None  # a copy
    changed = adjust(
        logits,
        [
            (i, row.num_generated, row.adjustments)
            for i, row in enumerate(rows)
            if row.adjustments is not None and i not in failed
        ],
    )
    if changed:
        values, best[changed] = logits[changed].max(-1)
        failed |= {
            changed[index]: "no token can be chosen: what is allowed, what min_tokens forbids and "
            f"the penalties leave none (largest logit: {values[index].item()})"
            for index in (~values.isfinite()).nonzero().flatten().tolist()
        }
    token_ids: list[int] = best.tolist()
    drawn = [i for i, row in enumerate(rows) if not is_greedy(row.params) and i not in failed]
    for begin in range(0, len(drawn), ROWS_AT_ONCE):
        part = drawn[begin : begin + ROWS_AT_ONCE]
        picked = _draw(logits[part], [rows[index] for index in part])
        for index, token in zip(part, picked, strict=True):
            token_ids[index] = token
    logprobs: dict[int, TokenLogprob] = {}
    if raw is not None:
        logprobs = _logprobs(raw, asked, rows, token_ids, failed)
    return Sampled(token_ids=token_ids, failed=failed, logprobs=logprobs)


def _logprobs(
    raw: Tensor,
    asked: Sequence[int],
    rows: Sequence[SamplerRow],
    token_ids: Sequence[int],
    failed: dict[int, str],
) -> dict[int, TokenLogprob]:
    """`raw` holds the logits of the rows `asked`."""
    found: dict[int, TokenLogprob] = {}
    sound = [(place, index) for place, index in enumerate(asked) if index not in failed]
    for begin in range(0, len(sound), ROWS_AT_ONCE):
        part = sound[begin : begin + ROWS_AT_ONCE]
        made = make_logprobs(
            raw[[place for place, _ in part]],
            [token_ids[index] for _, index in part],
            [rows[index].params.num_logprobs or 0 for _, index in part],
        )
        found |= {index: one for (_, index), one in zip(part, made, strict=True)}
    return found


def _draw(logits: Tensor, rows: Sequence[SamplerRow]) -> list[int]:
    """Changes `logits`."""
    params = [row.params for row in rows]
    temperatures = torch.tensor(
        [p.temperature for p in params], dtype=torch.float32, device=logits.device
    )
    probs = logits.div_(temperatures.unsqueeze(1)).softmax(-1)
    if any(is_cut(p, probs.shape[1]) for p in params):
        probs.masked_fill_(probs < least_kept(probs, params), 0)
    # One uniform number against the running sum, in the vocabulary's order: unlike an order by
    # probability it does not change when two tokens nearly tie.
    running = probs.cumsum(-1, dtype=torch.float64)
    total = running[:, -1:]
    draws = torch.tensor(
        [[uniform(row.seed, row.position)] for row in rows],
        dtype=torch.float64,
        device=logits.device,
    )
    target = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, target, right=True).squeeze(1).tolist()
