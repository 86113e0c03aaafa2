from octavo_engine.core.messages import SamplingParams
from octavo_engine.runner.adjustments import Adjustments, TokenCounts, needs_adjustments


def test_counts_follow_what_is_generated() -> None:
    counts = TokenCounts([1, 4, 1], [2])
    counts.add(2)
    counts.add(3)
    counts.add(4)
    found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == {1: 0, 4: 1, 2: 2, 3: 1}


def test_counts_grow_past_their_first_room() -> None:
    counts = TokenCounts(range(100), [])
    for token in range(50, 300):
        counts.add(token)
    assert counts.ids.tolist() == list(range(300))
    assert counts.counts.tolist() == [0] * 50 + [1] * 250


def test_a_prompt_is_listed_for_the_repetition_penalty_alone() -> None:
    for params, listed in (
        (SamplingParams(max_tokens=1, presence_penalty=1.0), [7]),
        (SamplingParams(max_tokens=1, repetition_penalty=1.1), [5, 6, 7]),
    ):
        counts = Adjustments(params, [5, 6], [7], "cpu").counts
        assert counts is not None
        assert counts.ids.tolist() == listed


def test_most_requests_need_none() -> None:
    assert not needs_adjustments(SamplingParams(max_tokens=1, top_p=0.9, num_logprobs=3))
    ignored = SamplingParams(max_tokens=1, suppress_until_min_tokens=frozenset({2}))
    assert not needs_adjustments(ignored)
    assert needs_adjustments(SamplingParams(max_tokens=1, logit_bias=((1, 2.0),)))
    assert needs_adjustments(SamplingParams(max_tokens=1, allowed_token_ids=frozenset()))
