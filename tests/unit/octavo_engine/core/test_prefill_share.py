import pytest

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.prefill_share import PrefillShare
from octavo_engine.core.request import RequestSpec
from octavo_engine.core.sequence import Sequence


def make_sequence(number: int, priority: int = 0) -> Sequence:
    spec = RequestSpec(
        request_id=f"r{number}",
        prompt_token_ids=[1],
        sampling=SamplingParams(max_tokens=1),
        arrival_s=0.0,
        priority=priority,
    )
    return Sequence(spec, number=number, max_total_tokens=2)


@pytest.mark.parametrize(
    ("needs", "budget", "granted"),
    [
        pytest.param([], 10, [], id="nobody"),
        pytest.param([1000], 512, [512], id="alone, a long prompt has all"),
        pytest.param([100, 200, 50], 512, [100, 200, 50], id="enough for all"),
        pytest.param([1000, 50], 512, [462, 50], id="what the others leave is the first's"),
        pytest.param([1000, 1000], 512, [256, 256], id="half for the first"),
        pytest.param([1000, 900, 40], 513, [256, 217, 40], id="the shorter before the longer"),
        pytest.param([40, 900, 1000], 512, [40, 471, 1], id="the first is served first"),
        pytest.param([900, 100, 120], 101, [50, 50, 1], id="about equal ones in order of service"),
        pytest.param([9, 9, 9], 3, [1, 1, 1], id="one token at least"),
    ],
)
def test_a_step_is_shared(needs: list[int], budget: int, granted: list[int]) -> None:
    prompts = PrefillShare(0.5)
    sequences = [make_sequence(i) for i in range(len(needs))]
    for sequence, need in zip(sequences, needs, strict=True):
        prompts.add(sequence, need)
    assert prompts.grant(budget) == list(zip(sequences, granted, strict=True))


def test_against_lesser_priorities_the_first_takes_all_it_can_use() -> None:
    prompts = PrefillShare(0.5)
    batch, urgent = make_sequence(0, priority=1), make_sequence(1, priority=0)
    prompts.add(urgent, 1000)
    prompts.add(batch, 10)
    assert prompts.grant(512) == [(urgent, 511), (batch, 1)]


@pytest.mark.parametrize(
    ("needs", "newcomer", "budget", "has_room"),
    [
        pytest.param([], 1000, 1, True, id="the first of a step"),
        pytest.param([], 1000, 0, False, id="no token left"),
        pytest.param([1000], 1000, 512, True, id="beside one long prompt"),
        pytest.param([1000, 1000], 1000, 512, False, id="behind two long prompts"),
        pytest.param([1000, 1000], 50, 512, True, id="a short one beside two long prompts"),
        pytest.param([1000, *[50] * 5], 50, 512, True, id="some of it is left"),
        pytest.param([1000, *[50] * 6], 50, 512, False, id="short ones fill their half"),
        pytest.param([1000, *[50] * 6], 20, 512, True, id="a shorter one still has room"),
    ],
)
def test_a_newcomer_has_room_where_it_would_get_more_than_one_token(
    needs: list[int], newcomer: int, budget: int, has_room: bool
) -> None:
    prompts = PrefillShare(0.5)
    for i, need in enumerate(needs):
        prompts.add(make_sequence(i), need)
    sequence = make_sequence(len(needs))
    assert prompts.has_room_for(sequence, newcomer, budget) is has_room
    if has_room and needs:
        prompts.add(sequence, newcomer)
        assert dict(prompts.grant(budget))[sequence] > 1


def test_the_oldest_of_all_has_room_whatever_runs() -> None:
    prompts = PrefillShare(0.5)
    for i in range(1, 8):
        prompts.add(make_sequence(i), 100)
    oldest = make_sequence(0)
    assert prompts.has_room_for(oldest, 5000, 512)
    prompts.add(oldest, 5000)
    assert dict(prompts.grant(512))[oldest] == 1 + 504 // 2
