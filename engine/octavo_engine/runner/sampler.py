"""From logits to tokens.

Order: suppressed tokens, penalties, then for rows that are not greedy: temperature, min_p, top_k,
top_p, choice. The choice needs one number in [0, 1) that is a function of (seed, position) alone,
so a sequence gets the same tokens in any batch, chunking or preemption that gives the same logits.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.core.messages import SamplingParams

GREEDY_BELOW = 1e-5
# Most nuclei are smaller; only rows whose nucleus is larger pay for a full sort.
_NUCLEUS = 512
# Rows whose distributions are in memory at once: fp64 sums of a large vocabulary are wide.
ROWS_AT_ONCE = 32


class TokenCounts:
    """Which tokens a sequence holds, for penalties; [vocabulary] each."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int], vocab_size: int, device: str):
        self.in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.output = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self.in_prompt[torch.tensor(prompt, dtype=torch.int64, device=device)] = True
        for token in output:
            self.add(token)

    def add(self, token: int) -> None:
        self.output[token] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """How to choose the token at `position` of one sequence."""

    params: SamplingParams
    seed: int
    position: int
    num_generated: int
    counts: TokenCounts | None = None  # there when `needs_counts(params)`


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Token of each row; `failed` maps rows whose logits were not numbers to what was seen."""

    token_ids: list[int]
    failed: dict[int, str]


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW


def needs_counts(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same (seed, position) anywhere."""
    key = seed.to_bytes(16, "little", signed=True) + position.to_bytes(8, "little")
    bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


def sample(logits: Tensor, rows: Sequence[SamplerRow]) -> Sampled:
    """Choose a token for each row of `logits` [rows, vocabulary], fp32. Changes `logits`."""
    # argmax takes NaN for the largest, so one pass finds the token and what is no distribution:
    # NaN, +inf, and a row of nothing but −inf.
    best = logits.argmax(-1)
    largest = logits.gather(1, best.unsqueeze(1)).squeeze(1)
    failed = {
        index: f"the model's logits are not numbers (largest: {largest[index].item()})"
        for index in (~largest.isfinite()).nonzero().flatten().tolist()
    }
    changed = [_suppress(logits[i], row) | _penalize(logits[i], row) for i, row in enumerate(rows)]
    if any(changed):
        best = logits.argmax(-1)
    token_ids: list[int] = best.tolist()
    drawn = [i for i, row in enumerate(rows) if not is_greedy(row.params) and i not in failed]
    for begin in range(0, len(drawn), ROWS_AT_ONCE):
        part = drawn[begin : begin + ROWS_AT_ONCE]
        picked = _draw(logits[part], [rows[index] for index in part])
        for index, token in zip(part, picked, strict=True):
            token_ids[index] = token
    return Sampled(token_ids=token_ids, failed=failed)


def _suppress(logits: Tensor, row: SamplerRow) -> bool:
    """Mask what must not come before min_tokens; whether anything was."""
    ids = row.params.suppress_until_min_tokens
    if not ids or row.num_generated >= row.params.min_tokens:
        return False
    logits[torch.tensor(sorted(ids), device=logits.device)] = -math.inf
    return True


def _penalize(logits: Tensor, row: SamplerRow) -> bool:
    """Repetition (Keskar 2019) over prompt and output, presence and frequency over output;
    whether there were any."""
    params, counts = row.params, row.counts
    if counts is None:
        return False
    produced = counts.output > 0
    if params.repetition_penalty != 1.0:
        factor = params.repetition_penalty
        penalized = torch.where(logits > 0, logits / factor, logits * factor)
        logits.copy_(torch.where(produced | counts.in_prompt, penalized, logits))
    logits.sub_(params.frequency_penalty * counts.output)
    logits.sub_(params.presence_penalty * produced)
    return True


def _draw(logits: Tensor, rows: Sequence[SamplerRow]) -> list[int]:
    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device).unsqueeze(1)

    params = [row.params for row in rows]
    probs = (logits / column([p.temperature for p in params])).softmax(-1)
    if any(p.min_p > 0 for p in params):
        floor = column([p.min_p for p in params]) * probs.amax(-1, keepdim=True)
        probs.masked_fill_(probs < floor, 0)
    vocab_size = probs.shape[1]
    cut = [index for index, p in enumerate(params) if _is_cut(p, vocab_size)]
    if cut:
        probs[cut] = _keep_top(probs[cut], [params[index] for index in cut])
    # One uniform number against the running sum, in the vocabulary's order: unlike an order by
    # probability it does not change when two tokens nearly tie.
    running = probs.double().cumsum(-1)
    total = running[:, -1:]
    draws = torch.tensor(
        [[uniform(row.seed, row.position)] for row in rows],
        dtype=torch.float64,
        device=logits.device,
    )
    target = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, target, right=True).squeeze(1).tolist()


def _is_cut(params: SamplingParams, vocab_size: int) -> bool:
    return params.top_p < 1 or 0 < params.top_k < vocab_size


def _keep_top(probs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Zero all but the top_k most probable tokens, and of these all but the smallest set that
    holds top_p of what is left; at least one token stays. Sums need not be 1.

    Tokens that tie with the last one kept are kept as well: which of them an order would prefer
    depends on how it was found, and with 16-bit logits ties are common.
    """
    vocab_size = probs.shape[1]
    top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    widest = max((k for k in top_k if k < vocab_size), default=0)
    width = min(vocab_size, max(_NUCLEUS, widest))
    limits = torch.tensor(top_k, device=probs.device).unsqueeze(1)
    top_p = torch.tensor(
        [p.top_p for p in params], dtype=torch.float32, device=probs.device
    ).unsqueeze(1)

    def cut(largest: Tensor) -> tuple[Tensor, Tensor]:
        """From the largest probabilities, in order: the least one to keep, and whether it is in."""
        ranks = torch.arange(largest.shape[1], device=probs.device)
        within = torch.where(ranks < limits, largest, 0)
        sums = within.cumsum(-1)
        left = torch.where(limits < vocab_size, sums[:, -1:], probs.sum(-1, keepdim=True))
        kept = ranks < limits
        kept &= (sums - within < top_p * left) | (top_p >= 1) | (ranks == 0)
        found = (sums[:, -1:] >= top_p * left) | (limits < vocab_size)
        return largest.gather(1, kept.sum(-1, keepdim=True) - 1), found

    least, found = cut(probs.topk(width, dim=-1).values)
    if not bool(found.all()):
        complete, _ = cut(probs.sort(dim=-1, descending=True).values)
        least = torch.where(found, least, complete)
    return probs.masked_fill(probs < least, 0)
