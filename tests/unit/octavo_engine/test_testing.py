"""The fake runner must catch what it is there to catch: each test breaks one rule of the cache."""

import pytest

from octavo_engine.core.messages import NewSequence, SamplingParams, SchedulerOutput
from octavo_engine.testing import FakeRunner, choose_by_hash, follow_script


def new(request_id: str, tokens: list[int], blocks: list[int]) -> NewSequence:
    return NewSequence(
        request_id=request_id,
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        block_ids=blocks,
        sampling=SamplingParams(max_tokens=8),
    )


def one_row(request_id: str, computed: int, count: int, **more: object) -> SchedulerOutput:
    return SchedulerOutput(
        step=0,
        request_ids=[request_id],
        num_computed_tokens=[computed],
        num_scheduled_tokens=[count],
        **more,  # type: ignore[arg-type]  # of several types
    )


@pytest.fixture
def runner() -> FakeRunner:
    """Holds "a" = tokens 1 to 5 in blocks 1 and 2, computed."""
    runner = FakeRunner(num_blocks=6, block_size=4)
    runner.dispatch(one_row("a", 0, 5, new=[new("a", [1, 2, 3, 4, 5], [1, 2])]))
    return runner


def test_the_next_token_depends_on_the_history_alone(runner: FakeRunner) -> None:
    chunked = FakeRunner(num_blocks=6, block_size=4)
    first = chunked.dispatch(one_row("b", 0, 3, new=[new("b", [1, 2, 3, 4, 5], [5, 3])]))
    assert first.result().token_ids == [[]]
    second = chunked.dispatch(one_row("b", 3, 2)).result()
    whole = FakeRunner(num_blocks=6, block_size=4).dispatch(
        one_row("a", 0, 5, new=[new("a", [1, 2, 3, 4, 5], [1, 2])])
    )
    assert second.token_ids == whole.result().token_ids
    assert second.token_ids == [[choose_by_hash(1000)([1, 2, 3, 4, 5])]]


def test_a_block_with_another_history_is_noticed(runner: FakeRunner) -> None:
    with pytest.raises(AssertionError, match="block 1 does not hold tokens 0 to 3"):
        runner.dispatch(one_row("b", 4, 1, new=[new("b", [9, 2, 3, 4, 5], [1, 3])]))


def test_a_block_that_was_never_computed_is_noticed(runner: FakeRunner) -> None:
    with pytest.raises(AssertionError, match="block 3 does not hold"):
        runner.dispatch(one_row("b", 4, 1, new=[new("b", [1, 2, 3, 4, 5], [3, 4])]))


def test_a_write_into_a_shared_block_is_noticed(runner: FakeRunner) -> None:
    with pytest.raises(AssertionError, match="writes into a shared block"):
        runner.dispatch(one_row("b", 3, 1, new=[new("b", [1, 2, 3, 4], [1])]))


def test_an_attend_only_row_reads_the_shared_block_and_gets_its_token(runner: FakeRunner) -> None:
    step = runner.dispatch(
        one_row("b", 3, 1, new=[new("b", [1, 2, 3, 4], [1])], attend_only=frozenset({"b"}))
    )
    assert len(step.result().token_ids[0]) == 1


def test_a_block_reused_while_its_owner_still_reads_it_is_noticed(runner: FakeRunner) -> None:
    runner._holders[1] = 0
    runner.dispatch(one_row("thief", 0, 4, new=[new("thief", [7, 7, 7, 7], [1])]))
    with pytest.raises(AssertionError, match="a: block 1 does not hold"):
        runner.dispatch(one_row("a", 5, 1))


@pytest.mark.parametrize(
    ("scheduled", "message"),
    [
        pytest.param(one_row("a", 5, 2), "tokens that nobody knows", id="beyond its tokens"),
        pytest.param(one_row("a", 5, 0), "row without tokens", id="no token"),
        pytest.param(
            one_row("b", 0, 5, new=[new("b", [1, 2, 3, 4, 5], [3])]), "too few blocks", id="blocks"
        ),
        pytest.param(
            one_row("b", 0, 1, new=[new("b", [1], [0])]), "not to be used", id="null block"
        ),
        pytest.param(one_row("a", 0, 1, new=[new("a", [1], [3])]), "new twice", id="new twice"),
    ],
)
def test_a_step_that_makes_no_sense_is_noticed(
    runner: FakeRunner, scheduled: SchedulerOutput, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        runner.dispatch(scheduled)


def test_outputs_can_be_scripted_rows_can_fail_and_results_can_take_time() -> None:
    waited: list[int] = []
    runner = FakeRunner(
        num_blocks=6,
        block_size=4,
        choose_token=follow_script([41, 42], 2),
        find_failure=lambda name, history: "boom" if history[-1] == 41 else None,
        before_result=lambda scheduled: waited.append(scheduled.total_tokens),
    )
    first = runner.dispatch(one_row("a", 0, 2, new=[new("a", [1, 2], [1])]))
    assert waited == []
    assert first.result().token_ids == [[41]]
    assert waited == [2]
    failed = runner.dispatch(one_row("a", 2, 1)).result()
    assert (failed.token_ids, failed.failed) == ([[]], {"a": "boom"})
    still_failed = runner.dispatch(one_row("a", 3, 1)).result()
    assert (still_failed.token_ids, still_failed.failed) == ([[]], {"a": "boom"})
