from typing import Any

import pytest

from octavo_engine.core.messages import NewSequence, SamplingParams, SchedulerOutput
from octavo_engine.runner.input_batch import InputBatch

PLAIN = SamplingParams(max_tokens=9, temperature=0.0)


def make_batch(base_seed: int = 1, seats: int = 3) -> InputBatch:
    return InputBatch(
        max_num_seqs=seats,
        max_blocks=5,
        num_blocks=20,
        block_size=4,
        device="cpu",
        base_seed=base_seed,
    )


def new(name: str, tokens: list[int], blocks: list[int], **changes: Any) -> NewSequence:
    values: dict[str, Any] = {
        "request_id": name,
        "token_ids": tokens,
        "num_prompt_tokens": len(tokens),
        "block_ids": blocks,
        "sampling": PLAIN,
    }
    return NewSequence(**{**values, **changes})


def step(rows: dict[str, tuple[int, int]], **changes: Any) -> SchedulerOutput:
    """`rows` are {request: (computed, scheduled)}."""
    return SchedulerOutput(
        step=0,
        request_ids=list(rows),
        num_computed_tokens=[computed for computed, _ in rows.values()],
        num_scheduled_tokens=[count for _, count in rows.values()],
        **changes,
    )


def test_a_mixed_step_by_hand() -> None:
    batch = make_batch()
    first = step(
        {"a": (0, 6), "b": (4, 2)},
        new=[new("a", [10, 11, 12, 13, 14, 15], [3, 9]), new("b", list(range(20, 27)), [2, 7])],
    )
    batch.apply(first)
    inputs = batch.make_inputs(first)
    assert inputs.token_ids.tolist() == [10, 11, 12, 13, 14, 15, 24, 25]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 5, 4, 5]
    assert inputs.slots.tolist() == [12, 13, 14, 15, 36, 37, 28, 29]
    assert inputs.context_lens == [6, 6]
    assert inputs.block_table.tolist() == [[3, 9], [2, 7]]
    # b has a seventh token to compute before it samples.
    assert (inputs.sampled_rows, inputs.last_tokens) == ([0], [5])


def test_tokens_and_blocks_grow_with_the_steps() -> None:
    batch = make_batch()
    first = step({"a": (0, 4)}, new=[new("a", [10, 11, 12, 13], [3])])
    batch.apply(first)
    batch.append_token("a", 40)
    second = step({"a": (4, 1)}, new_block_ids={"a": [8]})
    batch.apply(second)
    inputs = batch.make_inputs(second)
    assert inputs.token_ids.tolist() == [40]
    assert inputs.slots.tolist() == [32]
    assert inputs.block_table.tolist() == [[3, 8]]
    assert inputs.sampled_rows == [0]


def test_a_row_that_only_attends_has_no_slot() -> None:
    batch = make_batch()
    scheduled = step(
        {"a": (3, 1), "b": (0, 3)},
        new=[new("a", [1, 2, 3, 4], [5]), new("b", [1, 2, 3], [6])],
        attend_only=frozenset({"a"}),
    )
    batch.apply(scheduled)
    assert batch.make_inputs(scheduled).slots.tolist() == [-1, 24, 25, 26]


def test_rows_are_given_back_and_a_resumed_sequence_enters_anew() -> None:
    batch = make_batch(seats=2)
    batch.apply(step({}, new=[new("a", [1, 2], [1]), new("b", [3], [2])]))
    resumed = step(
        {"c": (0, 1), "a": (0, 3)},
        dropped=["b", "a", "never-seen"],
        new=[new("c", [9], [4]), new("a", [1, 2, 30], [7], num_prompt_tokens=2)],
    )
    batch.apply(resumed)
    assert len(batch) == 2
    inputs = batch.make_inputs(resumed)
    assert inputs.token_ids.tolist() == [9, 1, 2, 30]
    assert inputs.block_table.tolist() == [[4], [7]]
    assert inputs.sampled_rows == [0, 1]
    assert batch.sampler_row("a").num_generated == 1


def test_penalties_still_count_what_was_generated_before_a_preemption() -> None:  # B3
    batch = make_batch()
    sampling = SamplingParams(max_tokens=9, presence_penalty=1.0)
    batch.apply(
        step({}, new=[new("a", [1, 2, 30, 30], [7], num_prompt_tokens=2, sampling=sampling)])
    )
    batch.append_token("a", 31)
    adjustments = batch.sampler_row("a").adjustments
    assert adjustments is not None
    assert adjustments.counts is not None
    assert adjustments.counts.ids.tolist() == [30, 31]
    assert adjustments.counts.counts.tolist() == [2, 1]
    assert batch.sampler_row("a").position == 5


def test_seeds_are_the_requests_own_or_lasting_ones() -> None:
    def seed(name: str, base: int, sampling: SamplingParams = PLAIN) -> int:
        batch = make_batch(base_seed=base)
        batch.apply(step({}, new=[new(name, [1], [1], sampling=sampling)]))
        return batch.sampler_row(name).seed

    assert seed("a", 1, SamplingParams(max_tokens=1, seed=42)) == 42
    assert seed("a", 1, SamplingParams(max_tokens=1, seed=0)) == 0
    assert seed("a", 1) == seed("a", 1)
    assert len({seed("a", 1), seed("b", 1), seed("a", 2)}) == 3


def test_a_step_beyond_what_is_known_is_our_own_mistake() -> None:
    batch = make_batch()
    batch.apply(step({}, new=[new("a", [1, 2], [1])]))
    with pytest.raises(AssertionError, match="a: tokens 0 to 3"):
        batch.make_inputs(step({"a": (0, 3)}))
    with pytest.raises(AssertionError, match="outgrew"):
        batch.apply(step({}, new_block_ids={"a": [2, 3, 4, 5, 6]}))


def test_targets_of_prompt_logprobs_chunk_by_chunk() -> None:
    batch = make_batch()
    asked = SamplingParams(max_tokens=9, num_prompt_logprobs=2)
    prompt = [10, 11, 12, 13, 14, 15]
    first = step(
        {"b": (0, 2), "a": (0, 3)},
        new=[new("b", [1, 2], [5]), new("a", prompt, [3, 9], sampling=asked)],
    )
    batch.apply(first)
    (targets,) = batch.make_inputs(first).prompt_targets
    assert (targets.request_id, targets.first, targets.num_top) == ("a", 2, 2)
    assert targets.token_ids == [11, 12, 13]
    (rest,) = batch.make_inputs(step({"a": (3, 3)})).prompt_targets
    assert (rest.first, rest.token_ids) == (0, [14, 15])
    batch.append_token("a", 40)
    assert batch.make_inputs(step({"a": (6, 1)})).prompt_targets == []


def test_a_sequence_that_resumes_its_answer_has_given_out_its_prompt_logprobs() -> None:
    batch = make_batch()
    asked = SamplingParams(max_tokens=9, num_prompt_logprobs=0)
    scheduled = step(
        {"a": (0, 3)}, new=[new("a", [1, 2, 30], [7], num_prompt_tokens=2, sampling=asked)]
    )
    batch.apply(scheduled)
    assert batch.make_inputs(scheduled).prompt_targets == []


def test_a_block_that_two_sequences_hold_is_read_and_never_written() -> None:
    batch = make_batch()
    prompt = [1, 2, 3, 4, 5, 6]
    batch.apply(step({}, new=[new("a", prompt, [5, 6]), new("b", prompt, [5, 7])]))
    behind = step({"a": (4, 2), "b": (4, 2)})
    assert batch.make_inputs(behind).slots.tolist() == [24, 25, 28, 29]
    for name in ("a", "b"):
        with pytest.raises(AssertionError, match="shared"):
            batch.make_inputs(step({name: (3, 3)}))
    only_read = step({"b": (3, 1)}, attend_only=frozenset({"b"}))
    assert batch.make_inputs(only_read).slots.tolist() == [-1]
    batch.apply(step({}, dropped=["a"]))
    assert batch.make_inputs(step({"b": (3, 3)})).slots.tolist() == [23, 28, 29]
