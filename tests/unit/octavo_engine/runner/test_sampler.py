import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo_engine.core.messages import SamplingParams
from octavo_engine.runner import sampler
from octavo_engine.runner.sampler import SamplerRow, TokenCounts, needs_counts, sample, uniform

VOCAB = 50


def row(
    *,
    prompt: tuple[int, ...] = (1, 2),
    output: tuple[int, ...] = (),
    seed: int = 7,
    vocab: int = VOCAB,
    **params: Any,
) -> SamplerRow:
    sampling = SamplingParams(max_tokens=100, **params)
    return SamplerRow(
        params=sampling,
        seed=seed,
        position=len(prompt) + len(output),
        num_generated=len(output),
        counts=TokenCounts(prompt, output, vocab, "cpu") if needs_counts(sampling) else None,
    )


def logits(rows: int = 1, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def drawn(given: Tensor, count: int = 400, **params: Any) -> Counter[int]:
    """Tokens drawn from one distribution with `count` seeds."""
    rows = [row(seed=seed, **params) for seed in range(count)]
    return Counter(sample(given.repeat(count, 1), rows).token_ids)


def test_greedy_takes_the_largest_below_the_threshold_and_only_there() -> None:
    given = logits()
    best = int(given.argmax())
    assert drawn(given, temperature=0.0) == {best: 400}
    assert drawn(given, temperature=9e-6) == {best: 400}
    assert len(drawn(given, temperature=1.0)) > 5


def test_temperature_1_draws_the_softmax() -> None:
    given = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05, 0.0]]))
    counts = drawn(given, 4000, temperature=1.0)
    for token, share in enumerate([0.5, 0.3, 0.15, 0.05, 0.0]):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.03)
    assert counts[4] == 0


def test_a_lower_temperature_sharpens() -> None:
    given = torch.log(torch.tensor([[0.6, 0.4]]))
    assert drawn(given, 4000, temperature=0.5)[0] / 4000 == pytest.approx(0.36 / 0.52, abs=0.03)


# F1: a seeded row gets the same token whatever else is in the batch, and wherever it is in it.
@pytest.mark.parametrize("others", [0, 1, 7, 40])
def test_a_seeded_row_does_not_depend_on_its_batch(others: int) -> None:
    given = logits() / 3
    alone = [
        sample(given.clone(), [row(seed=42, temperature=0.8, output=(3,) * step)]).token_ids[0]
        for step in range(20)
    ]
    assert len(set(alone)) > 3
    mixed = []
    for step in range(20):
        batch = torch.cat([logits(others, seed=step + 1), given.clone()])
        rows = [
            row(seed=step * 100 + i, temperature=1.5 if i % 2 else 0.0, top_p=0.5, top_k=3)
            for i in range(others)
        ]
        rows.append(row(seed=42, temperature=0.8, output=(3,) * step))
        mixed.append(sample(batch, rows).token_ids[-1])
    assert mixed == alone


# F2: neighbouring seeds, as n > 1 uses them, give streams of their own that can be repeated.
def test_neighbouring_seeds_and_positions_give_numbers_of_their_own() -> None:
    numbers = [[uniform(seed, position) for position in range(500)] for seed in range(40)]
    flat = [number for stream in numbers for number in stream]
    assert len(set(flat)) == len(flat)
    assert all(0 <= number < 1 for number in flat)
    assert sum(flat) / len(flat) == pytest.approx(0.5, abs=0.01)
    pairs = torch.tensor(numbers)
    assert abs(float(torch.corrcoef(torch.stack([pairs[0], pairs[1]]))[0, 1])) < 0.15
    assert uniform(3, 5) == uniform(3, 5)
    assert uniform(-1, 0) != uniform(1, 0)
    assert uniform(2**64 - 1, 0) != uniform(2**63, 0)


# F4: presence and frequency count the output alone, repetition the prompt too.
def adjusted(given: Tensor, one: SamplerRow) -> Tensor:
    changed = given.clone()
    sample(changed, [one])
    return changed


def test_presence_and_frequency_leave_the_prompt_alone() -> None:
    given = logits()
    for params in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        one = row(prompt=(4, 4, 4), temperature=0.0, **params)
        assert torch.equal(adjusted(given, one), given)


def test_presence_is_paid_once_and_frequency_each_time() -> None:
    given = logits()
    once = adjusted(given, row(output=(9, 9, 9, 5), temperature=0.0, presence_penalty=0.5)) - given
    each = adjusted(given, row(output=(9, 9, 9, 5), temperature=0.0, frequency_penalty=0.5)) - given
    expected_once, expected_each = torch.zeros(1, VOCAB), torch.zeros(1, VOCAB)
    expected_once[0, [5, 9]] = -0.5
    expected_each[0, 5], expected_each[0, 9] = -0.5, -1.5
    torch.testing.assert_close(once, expected_once)
    torch.testing.assert_close(each, expected_each)


def test_repetition_counts_prompt_and_output_and_pushes_both_signs_down() -> None:
    given = torch.zeros(1, VOCAB)
    given[0, 4], given[0, 5], given[0, 6] = 3.0, -3.0, 1.0
    changed = adjusted(
        given, row(prompt=(4,), output=(5,), temperature=0.0, repetition_penalty=2.0)
    )
    assert changed[0, 4] == 1.5
    assert changed[0, 5] == -6.0
    assert changed[0, 6] == 1.0


def test_counts_follow_what_is_generated() -> None:
    counts = TokenCounts([1], [2], VOCAB, "cpu")
    counts.add(2)
    counts.add(3)
    assert counts.output[[1, 2, 3]].tolist() == [0, 2, 1]
    assert counts.in_prompt.nonzero().flatten().tolist() == [1]


# F6: a row of no numbers fails alone.
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_no_numbers_fails_alone(bad: float, temperature: float) -> None:
    given = logits(4)
    rows = [row(seed=index, temperature=temperature) for index in range(4)]
    clean = sample(given.clone(), rows)
    given[2, 17] = bad
    mixed = sample(given, rows)
    assert list(mixed.failed) == [2]
    assert "not numbers" in mixed.failed[2]
    assert clean.failed == {}
    for index in (0, 1, 3):
        assert mixed.token_ids[index] == clean.token_ids[index]


def test_a_row_of_minus_infinity_fails() -> None:
    assert list(sample(torch.full((1, VOCAB), -math.inf), [row()]).failed) == [0]


# F7: the ends of every range have a defined result.
@pytest.mark.parametrize(
    "params",
    [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-4}],
    ids=str,
)
def test_the_narrow_ends_are_greedy(params: dict[str, Any]) -> None:
    given = logits()
    assert drawn(given, **params) == {int(given.argmax()): 400}


@pytest.mark.parametrize(
    "params",
    [{"top_k": 0}, {"top_k": -1}, {"top_k": 10**9}, {"top_p": 1.0}, {"min_p": 0.0}],
    ids=str,
)
def test_the_wide_ends_change_nothing(params: dict[str, Any]) -> None:
    assert drawn(logits(), **params) == drawn(logits())


def test_top_k_keeps_the_k_largest() -> None:
    given = logits()
    assert set(drawn(given, top_k=4, temperature=3.0)) == set(given.topk(4).indices[0].tolist())


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    given = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    assert set(drawn(given, top_p=0.39)) == {1}
    assert set(drawn(given, top_p=0.41)) == {1, 3}
    assert set(drawn(given, top_p=0.69)) == {1, 3}
    assert set(drawn(given, top_p=0.95)) == {0, 1, 2, 3}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    given = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    # Of {0.4, 0.3} the first alone holds 0.57.
    assert set(drawn(given, top_k=2, top_p=0.5)) == {1}
    assert set(drawn(given, top_k=2, top_p=0.6)) == {1, 3}


def test_min_p_is_relative_to_the_most_probable() -> None:
    given = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    assert set(drawn(given, min_p=0.6)) == {1, 3}


def test_a_nucleus_wider_than_the_short_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.linspace(0, 0.01, VOCAB).unsqueeze(0)
    wide = drawn(given, 1500, top_p=0.5)
    monkeypatch.setattr(sampler, "_NUCLEUS", 4)
    assert drawn(given, 1500, top_p=0.5) == wide
    assert set(wide) == set(range(VOCAB // 2, VOCAB))


def test_tokens_that_tie_with_the_last_one_kept_stay() -> None:
    given = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0]])
    assert set(drawn(given, top_k=2)) == {1, 2, 3}
    assert set(drawn(given, top_p=0.3)) == {1, 2, 3}


@pytest.mark.parametrize("others", [{"top_p": 0.99}, {"top_k": 49}, {"temperature": 5.0}], ids=str)
def test_a_cut_does_not_depend_on_the_cuts_of_other_rows(
    others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_NUCLEUS", 8)
    given = (logits() * 2).round() / 2  # with ties
    for params in ({"top_p": 0.6}, {"top_k": 3}, {"top_k": 7, "top_p": 0.9}, {"top_p": 0.97}):
        for seed in range(30):
            alone = sample(given.clone(), [row(seed=seed, **params)]).token_ids[0]
            both = [row(seed=1, **others), row(seed=seed, **params)]
            assert sample(given.repeat(2, 1), both).token_ids[1] == alone


def test_many_rows_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = logits(9)
    rows = [row(seed=index, temperature=2.0) for index in range(9)]
    whole = sample(given.clone(), rows).token_ids
    monkeypatch.setattr(sampler, "ROWS_AT_ONCE", 4)
    assert sample(given.clone(), rows).token_ids == whole


def test_the_last_token_can_be_drawn_and_an_impossible_one_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = torch.full((1, VOCAB), -math.inf)
    given[0, 10] = given[0, 20] = 0.0
    for number, token in ((0.0, 10), (0.4999, 10), (0.5, 20), (1 - 2**-53, 20)):
        monkeypatch.setattr(sampler, "uniform", lambda seed, position, n=number: n)
        assert sample(given.clone(), [row()]).token_ids == [token]


def test_tokens_are_suppressed_until_min_tokens() -> None:
    given = logits()
    best, second = given[0].topk(2).indices.tolist()
    params = {
        "temperature": 0.0,
        "min_tokens": 2,
        "suppress_until_min_tokens": frozenset({best}),
    }
    for length, token in ((0, second), (1, second), (2, best)):
        one = row(output=(3,) * length, **params)
        assert sample(given.clone(), [one]).token_ids == [token]
