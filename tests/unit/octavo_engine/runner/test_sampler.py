import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo_engine.core.messages import SamplingParams
from octavo_engine.runner import sampler
from octavo_engine.runner.adjustments import Adjustments, needs_adjustments
from octavo_engine.runner.sampler import SamplerRow, sample, uniform

VOCAB = 50


def row(
    *,
    prompt: tuple[int, ...] = (1, 2),
    output: tuple[int, ...] = (),
    seed: int = 7,
    **params: Any,
) -> SamplerRow:
    sampling = SamplingParams(max_tokens=100, **params)
    return SamplerRow(
        params=sampling,
        seed=seed,
        position=len(prompt) + len(output),
        num_generated=len(output),
        adjustments=Adjustments(sampling, prompt, output, "cpu")
        if needs_adjustments(sampling)
        else None,
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


def test_tokens_that_tie_with_the_last_one_kept_stay() -> None:
    given = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0]])
    assert set(drawn(given, top_k=2)) == {1, 2, 3}
    assert set(drawn(given, top_p=0.3)) == {1, 2, 3}


@pytest.mark.parametrize("others", [{"top_p": 0.99}, {"top_k": 49}, {"temperature": 5.0}], ids=str)
def test_a_cut_does_not_depend_on_the_cuts_of_other_rows(
    others: dict[str, Any],
) -> None:
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


# A row that may choose nothing must fail, not answer with token 0.
def test_a_row_whose_every_token_is_forbidden_fails_alone() -> None:
    given = logits(2)
    params = {"allowed_token_ids": frozenset({3}), "min_tokens": 2}
    both = [row(suppress_until_min_tokens=frozenset({3}), **params), row(temperature=0.0)]
    sampled = sample(given.clone(), both)
    assert list(sampled.failed) == [0]
    assert "no token can be chosen" in sampled.failed[0]
    assert sampled.token_ids[1] == int(given[1].argmax())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_biases_allowed_tokens_and_penalties_never_make_minus_infinity_a_nan(
    temperature: float,
) -> None:
    given = logits()
    given[0, 5:] = -math.inf
    params = {
        "temperature": temperature,
        "logit_bias": ((7, 100.0), (8, -100.0), (1, -100.0)),
        "allowed_token_ids": frozenset({0, 2, 7, 9}),
        "repetition_penalty": 1.5,
        "presence_penalty": 2.0,
        "frequency_penalty": -2.0,
        "min_p": 0.01,
        "top_p": 0.99,
        "top_k": 30,
        "num_logprobs": 10,
    }
    for seed in range(50):
        given_to = given.clone()
        sampled = sample(given_to, [row(seed=seed, prompt=(7, 8), output=(9, 10), **params)])
        assert not given_to.isnan().any()
        assert sampled.failed == {}
        assert sampled.token_ids[0] in (0, 2)
        of_top = [logprob for _, logprob in sampled.logprobs[0].top]
        assert of_top[5:] == [-math.inf] * 5
        assert not any(math.isnan(logprob) for logprob in of_top)


# FACTS: mask and bias, then penalties, then temperature.
def test_a_bias_comes_before_penalties_and_temperature() -> None:
    given = torch.zeros(1, VOCAB)
    given[0, 4] = -1.0
    one = row(output=(4,), temperature=0.0, logit_bias=((4, 5.0),), repetition_penalty=2.0)
    assert adjusted(given, one)[0, 4] == 2.0  # (−1 + 5) / 2, not −1 · 2 + 5
    counts = drawn(torch.zeros(1, 2), 4000, temperature=0.5, logit_bias=((0, math.log(2)),))
    assert counts[0] / 4000 == pytest.approx(0.8, abs=0.03)  # 2² against 1


def test_a_bias_of_a_hundred_decides() -> None:
    given = logits()
    worst = int(given.argmin())
    assert drawn(given, logit_bias=((worst, 100.0),)) == {worst: 400}
    best = int(given.argmax())
    assert best not in drawn(given, logit_bias=((best, -100.0),))


def test_only_allowed_tokens_are_drawn_and_in_their_proportion() -> None:
    given = torch.log(torch.tensor([[0.5, 0.3, 0.1, 0.1]]))
    counts = drawn(given, 4000, allowed_token_ids=frozenset({1, 3}))
    assert set(counts) == {1, 3}
    assert counts[1] / 4000 == pytest.approx(0.75, abs=0.03)
    best = sample(given.clone(), [row(temperature=0.0, allowed_token_ids=frozenset({2, 3}))])
    assert best.token_ids == [2]


def test_rows_that_change_nothing_stay_as_they_are_beside_rows_that_do() -> None:
    given = logits(3)
    changed = given.clone()
    rows = [
        row(temperature=0.0),
        row(temperature=0.0, logit_bias=((4, 50.0),)),
        row(temperature=0.0, output=(5, 5), frequency_penalty=1.0),
    ]
    token_ids = sample(changed, rows).token_ids
    assert torch.equal(changed[0], given[0])
    assert token_ids[:2] == [int(given[0].argmax()), 4]
    difference = changed[2] - given[2]
    assert difference.nonzero().flatten().tolist() == [5]
    assert difference[5] == pytest.approx(-2.0)


def test_logprobs_are_of_the_raw_logits_whatever_the_row_does_to_them() -> None:
    given = logits(3)
    params = {"temperature": 0.3, "logit_bias": ((6, 100.0),), "num_logprobs": 2}
    rows = [row(temperature=0.0), row(top_p=0.1, **params), row(temperature=0.0, num_logprobs=0)]
    sampled = sample(given.clone(), rows)
    assert set(sampled.logprobs) == {1, 2}
    expected = given.double().log_softmax(-1)
    chosen = sampled.logprobs[1]
    assert chosen.token_id == sampled.token_ids[1] == 6
    assert chosen.logprob == pytest.approx(float(expected[1, 6]), abs=1e-5)
    assert chosen.rank == 1 + int((given[1] > given[1, 6]).sum())
    assert [token for token, _ in chosen.top] == given[1].topk(2).indices.tolist()
    assert sampled.logprobs[2].rank == 1
    assert sampled.logprobs[2].top == ()


def test_a_failed_row_has_no_logprobs_and_costs_the_others_none() -> None:
    given = logits(3)
    given[1, 4] = math.nan
    rows = [row(num_logprobs=1) for _ in range(3)]
    sampled = sample(given, rows)
    assert set(sampled.failed) == {1}
    assert set(sampled.logprobs) == {0, 2}


def test_rows_that_ask_for_no_logprobs_pay_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = sampler.make_logprobs

    def watched(given: Tensor, *args: Any) -> Any:
        seen.append(len(given))
        return original(given, *args)

    monkeypatch.setattr(sampler, "make_logprobs", watched)
    sample(logits(6), [row() for _ in range(6)])
    assert seen == []
    sample(logits(6), [row(num_logprobs=1 if i == 4 else None) for i in range(6)])
    assert seen == [1]


# F2, F1: a sequence's draws are its own, at any place of any batch, with everything switched on.
def test_everything_at_once_does_not_depend_on_the_batch() -> None:
    given = logits(12, seed=3)
    kinds: list[dict[str, Any]] = [
        {"top_p": 0.8, "num_logprobs": 3},
        {"top_k": 7, "repetition_penalty": 1.3, "output": (4, 5)},
        {"min_p": 0.05, "logit_bias": ((3, 2.0),)},
        {"temperature": 0.0, "num_logprobs": 5},
        {"presence_penalty": 1.0, "output": (9,), "allowed_token_ids": frozenset(range(30))},
    ]
    rows = [row(seed=i, **kinds[i % len(kinds)]) for i in range(12)]
    together = sample(given.clone(), rows)
    for i, one in enumerate(rows):
        alone = sample(given[i : i + 1].clone(), [one])
        assert alone.token_ids == [together.token_ids[i]]
        assert alone.logprobs.get(0) == together.logprobs.get(i)
