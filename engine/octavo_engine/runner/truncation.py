"""min_p, top_k and top_p as one number a row: the least probability that may still be drawn.

In this order, each among what the one before left: min_p keeps what is at least min_p times the
most probable, top_k the k most probable, top_p the fewest that hold top_p of what is left; one
stays at least. Tokens that tie with the last one kept are kept as well: which of them an order
would prefer depends on how it was found, and with 16-bit logits ties are common.

A row's number depends on its own probabilities and parameters alone.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo_engine.core.messages import SamplingParams


def is_cut(params: SamplingParams, vocab_size: int) -> bool:
    return params.min_p > 0 or params.top_p < 1 or 0 < params.top_k < vocab_size


def least_kept(probs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """For `probs` [rows, vocabulary], fp32, the least one to keep of each row: [rows, 1]."""
    if probs.device.type == "cpu":
        return least_kept_by_row(probs, params)
    return least_kept_by_sort(probs, params)


def least_kept_by_sort(probs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """As it reads, for all rows at once: a complete sort, which a GPU does in passing."""

    def column(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=probs.device).unsqueeze(1)

    vocab_size = probs.shape[1]
    ordered = probs.sort(dim=-1, descending=True).values
    ranks = torch.arange(vocab_size, device=probs.device)
    limits = column([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params])
    floors = ordered[:, :1] * column([p.min_p for p in params], torch.float32)
    kept = (ranks < limits) & (ordered >= floors)
    largest = torch.where(kept, ordered, 0).double()
    sums = largest.cumsum(-1)
    top_p = column([p.top_p for p in params])
    kept &= (sums - largest < top_p * sums[:, -1:]) | (top_p >= 1) | (ranks == 0)
    return ordered.gather(1, kept.sum(-1, keepdim=True) - 1)


def least_kept_by_row(probs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The same by selection, sorting only what top_p may choose from; for tensors on the CPU."""
    array = probs.numpy()
    least = [_least_of_row(array[row], one) for row, one in enumerate(params)]
    return torch.tensor(least, dtype=torch.float32).unsqueeze(1)


def _least_of_row(probs: npt.NDArray[np.float32], params: SamplingParams) -> float:
    if not is_cut(params, len(probs)):
        return 0.0
    kept = probs
    if params.min_p > 0:
        kept = kept[kept >= kept.max() * np.float32(params.min_p)]
    if 0 < params.top_k < len(kept):
        kept = np.partition(kept, len(kept) - params.top_k)[-params.top_k :]
    if params.top_p >= 1:
        return float(kept.min())
    # What is less probable than (1 − top_p) / n of the sum holds, all n together, less than
    # 1 − top_p of it: the rest holds top_p. A little below, so that rounding takes no more away.
    total = float(kept.sum(dtype=np.float64))
    kept = kept[kept >= 0.999 * (1 - params.top_p) * total / len(kept)]
    largest = np.sort(kept)[::-1]
    sums = np.cumsum(largest, dtype=np.float64)
    before = int(np.searchsorted(sums, params.top_p * total))  # sums that have not reached it
    return float(largest[min(before, len(largest) - 1)])
