import math
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo_engine.core.messages import SamplingParams
from octavo_engine.runner.truncation import least_kept_by_row, least_kept_by_sort

VOCAB = 3000
KINDS: list[dict[str, Any]] = [
    {},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"top_p": 1e-9},
    {"top_p": 0.9999999},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": VOCAB},
    {"top_k": 50, "top_p": 0.7},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 0.01, "top_k": 20, "top_p": 0.95},
]


def params(kind: dict[str, Any]) -> SamplingParams:
    return SamplingParams(max_tokens=1, **kind)


def definition(probs: list[float], one: SamplingParams) -> float:
    """The least probability that is kept, read off the words."""
    kept = sorted(probs, reverse=True)
    if one.min_p:
        floor = float(torch.tensor(kept[0]) * torch.tensor(one.min_p))
        kept = [p for p in kept if p >= floor]
    if one.top_k:
        kept = kept[: one.top_k]
    if one.top_p < 1:
        target, total, count = one.top_p * math.fsum(kept), 0.0, 0
        while count < len(kept) and (total < target or not count):
            total += kept[count]
            count += 1
        kept = kept[:count]
    return kept[-1]


def distributions() -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(4)
    noise = torch.randn(VOCAB, generator=chance)
    hole = (noise * 3).clone()
    hole[::3] = -math.inf
    logits = {
        "flat": noise * 0.01,
        "ordinary": noise * 3,
        "sharp": noise * 12,
        "with many ties": (noise * 2).round(),
        "all equal": torch.zeros(VOCAB),
        "with masked tokens": hole,
    }
    return {name: given.softmax(-1) for name, given in logits.items()}


@pytest.mark.parametrize("name", distributions())
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_kept_is_what_the_words_say(name: str, kind: dict[str, Any]) -> None:
    probs = distributions()[name]
    one = params(kind)
    expected = probs >= definition(probs.tolist(), one)
    for found in (
        least_kept_by_row(probs.unsqueeze(0), [one]),
        least_kept_by_sort(probs.unsqueeze(0), [one]),
    ):
        assert found.shape == (1, 1)
        kept = probs >= found[0, 0]
        # The two sums are added in different orders: they may part at one boundary.
        assert int((kept != expected).sum()) <= (1 if kind.get("top_p") == 0.9999999 else 0)


def test_a_row_is_cut_alike_in_any_batch() -> None:
    probs = torch.stack(list(distributions().values())).repeat_interleave(len(KINDS), 0)
    all_params = [params(kind) for _ in distributions() for kind in KINDS]
    for cut in (least_kept_by_row, least_kept_by_sort):
        together = cut(probs, all_params)
        for i, one in enumerate(all_params):
            assert cut(probs[i : i + 1], [one])[0, 0] == together[i, 0]
