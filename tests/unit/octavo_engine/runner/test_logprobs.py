import math

import pytest
import torch

from octavo_engine.runner.logprobs import make_logprobs


def test_natural_logarithms_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]])) + 3.0
    one, two = make_logprobs(logits, [2, 0], [2, 0])
    assert (one.token_id, one.rank) == (2, 2)
    assert one.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert [token for token, _ in one.top] == [0, 2]
    assert [value for _, value in one.top] == pytest.approx([math.log(0.5), math.log(0.3)])
    assert (two.token_id, two.top) == (0, ())
    assert two.logprob == pytest.approx(math.log(0.1), abs=1e-6)


def test_ties_stand_in_the_order_of_their_ids_in_lists_and_ranks() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [900, 500, 30]] = 1.0
    for token, rank in ((30, 1), (500, 2), (900, 3), (0, 4), (999, 1000)):
        (found,) = make_logprobs(logits, [token], [5])
        assert found.rank == rank
        assert [token for token, _ in found.top] == [30, 500, 900, 0, 1]


def test_minus_infinity_stays_what_it_is() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    (found,) = make_logprobs(logits, [3], [9])
    assert (found.logprob, found.rank) == (-math.inf, 4)
    assert [token for token, _ in found.top] == [0, 2, 1, 3]
    assert found.top[3][1] == -math.inf
    assert found.top[0][1] == pytest.approx(math.log(0.5))


def test_a_row_is_the_same_in_any_batch() -> None:
    logits = torch.randn(20, 5000, generator=torch.Generator().manual_seed(0)) * 4
    tokens = list(range(20))
    together = make_logprobs(logits, tokens, [i % 4 for i in range(20)])
    for i in range(20):
        assert make_logprobs(logits[i : i + 1], [i], [i % 4]) == [together[i]]
