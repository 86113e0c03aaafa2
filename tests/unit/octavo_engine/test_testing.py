"""The fake runner must catch what it is there to catch: each test breaks one rule of the cache."""

import pytest

from octavo_engine.core.messages import NewSequence, SamplingParams, SchedulerOutput
from octavo_engine.core.request import RequestSpec
from octavo_engine.core.scheduler import Scheduler, SchedulerConfig
from octavo_engine.testing import (
    FakeRunner,
    InstantRunner,
    choose_by_hash,
    follow_script,
    make_logprob,
)


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


class TestLogprobs:
    def test_they_depend_on_the_history_alone(self) -> None:
        sampling = SamplingParams(max_tokens=8, num_logprobs=2, num_prompt_logprobs=2)
        tokens = [1, 2, 3, 4, 5, 6]
        sequence = NewSequence(
            request_id="a",
            token_ids=tokens,
            num_prompt_tokens=6,
            block_ids=[1, 2],
            sampling=sampling,
        )
        whole = FakeRunner(6, 4).dispatch(one_row("a", 0, 6, new=[sequence])).result()
        chunked = FakeRunner(6, 4)
        first = chunked.dispatch(one_row("a", 0, 3, new=[sequence])).result()
        second = chunked.dispatch(one_row("a", 3, 3)).result()
        assert [found.token_id for found in whole.prompt_logprobs["a"]] == tokens[1:]
        both = first.prompt_logprobs["a"] + second.prompt_logprobs["a"]
        assert both == whole.prompt_logprobs["a"]
        assert first.logprobs == {}
        assert second.logprobs == whole.logprobs
        assert [found.token_id for found in whole.logprobs["a"]] == whole.token_ids[0]
        assert all(found.logprob < 0 for found in both)

    def test_a_token_among_the_likeliest_has_their_rank_and_value(self) -> None:
        top = make_logprob(history=123, token_id=0, num_top=4, vocab_size=50).top
        assert [logprob for _, logprob in top] == sorted((p for _, p in top), reverse=True)
        third = make_logprob(history=123, token_id=top[2][0], num_top=4, vocab_size=50)
        assert (third.rank, third.logprob) == (3, top[2][1])
        outside = make_logprob(
            history=123, token_id=1 + max(i for i, _ in top), num_top=4, vocab_size=50
        )
        assert outside.rank > 4
        assert outside.logprob < top[-1][1]


class TestInstantRunner:
    @pytest.mark.parametrize("depth", [0, 1])
    def test_it_gives_every_sequence_its_script_through_chunks_and_preemptions(
        self, depth: int
    ) -> None:
        scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=14,
                block_size=4,
                max_num_seqs=4,
                max_num_batched_tokens=8,
                max_model_len=64,
                async_depth=depth,
            )
        )
        runner = InstantRunner([11, 12, 13])
        for i in range(6):
            sampling = SamplingParams(max_tokens=20)
            scheduler.add(
                RequestSpec(
                    request_id=str(i), prompt_token_ids=[i] * 9, sampling=sampling, arrival_s=0.0
                )
            )
        tokens: dict[str, list[int]] = {str(i): [] for i in range(6)}
        pending: list[SchedulerOutput] = []
        results = []
        while scheduler.has_work() or pending:
            pending.append(scheduler.schedule(0.0))
            results.append(runner.dispatch(pending[-1]))
            while len(pending) > (depth if scheduler.has_work() else 0):
                for update in scheduler.update(pending.pop(0), results.pop(0).result(), 0.0):
                    tokens[update.request_id] += update.new_token_ids
        assert scheduler.stats().num_preemptions > 0
        assert all(found == ([11, 12, 13] * 7)[:20] for found in tokens.values())
        assert not runner.held_request_ids
