"""Log-probabilities of the model's own distribution, before anything a request asks for."""

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_engine.core.messages import TokenLogprob


def make_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprob]:
    """Of `token_ids`, one for each row of `logits` [rows, vocabulary], fp32, raw.

    Row i lists its num_top[i] likeliest too. Tokens that tie stand in the order of their ids, in
    the list and in ranks, so a token's rank is its place in a list that is long enough. A logit of
    −inf gives −inf; the rows themselves must have a largest logit that is a number.
    """
    tokens = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    logprobs = logits.log_softmax(-1)
    chosen = logits.gather(1, tokens)
    earlier = torch.arange(logits.shape[1], device=logits.device) < tokens
    ranks = 1 + ((logits > chosen) | ((logits == chosen) & earlier)).sum(-1)
    of_chosen = logprobs.gather(1, tokens).squeeze(1).tolist()
    tops = _likeliest(logits, logprobs, num_top)
    return [
        TokenLogprob(token_id=token, logprob=logprob, rank=rank, top=top)
        for token, logprob, rank, top in zip(
            token_ids, of_chosen, ranks.tolist(), tops, strict=True
        )
    ]


def _likeliest(
    logits: Tensor, logprobs: Tensor, num_top: Sequence[int]
) -> list[tuple[tuple[int, float], ...]]:
    vocab_size = logits.shape[1]
    widest = min(max(num_top), vocab_size)
    if widest == 0:
        return [()] * len(num_top)
    largest = logits.topk(widest, dim=-1).values
    tops: list[tuple[tuple[int, float], ...]] = []
    for row, count in enumerate(num_top):
        count = min(count, vocab_size)
        if count == 0:
            tops.append(())
            continue
        # topk says nothing of the order of ties, so its values only mark where to cut.
        ids = (logits[row] >= largest[row, count - 1]).nonzero().flatten()
        ids = ids[logits[row, ids].sort(descending=True, stable=True).indices[:count]]
        tops.append(tuple(zip(ids.tolist(), logprobs[row, ids].tolist(), strict=True)))
    return tops
