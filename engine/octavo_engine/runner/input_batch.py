"""The runner's copy of the sequences in the batch, kept up to date by what each step says.

A sequence keeps its row from the step that brings it to the step that drops it, so a step costs
what it computes and not what the sequences hold.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo_engine.core.messages import NewSequence, SamplingParams, SchedulerOutput
from octavo_engine.runner.adjustments import Adjustments, needs_adjustments
from octavo_engine.runner.sampler import SamplerRow

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Sequence:
    row: int  # in the block table
    token_ids: list[int]
    num_prompt_tokens: int
    num_blocks: int
    sampling: SamplingParams
    seed: int
    adjustments: Adjustments | None
    # Log-probabilities to list for each prompt token; None: not asked, or all given out already.
    num_prompt_logprobs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTargets:
    """Prompt tokens that a step's positions predict and whose log-probabilities are asked for."""

    request_id: str
    first: int  # index in the step of the position that predicts token_ids[0]
    token_ids: list[int]
    num_top: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What one step computes, as flat arrays; rows are in the order of the scheduler's output."""

    token_ids: IntArray  # [tokens]
    positions: IntArray  # [tokens]
    slots: IntArray  # [tokens], −1: not stored
    query_lens: list[int]
    context_lens: list[int]
    block_table: IntArray  # [rows, blocks of the longest]
    sampled_rows: list[int] = field(default_factory=list)
    last_tokens: list[int] = field(default_factory=list)  # of each sampled row, index in the step
    prompt_targets: list[PromptTargets] = field(default_factory=list)


class InputBatch:
    """Sequences by request id."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_blocks: int,
        num_blocks: int,
        block_size: int,
        device: str,
        base_seed: int,
    ) -> None:
        self._block_size = block_size
        self._device = device
        self._base_seed = base_seed
        self._block_table: IntArray = np.zeros((max_num_seqs, max_blocks), dtype=np.int64)
        # How many sequences have a block in their table: shared blocks are read, never written.
        self._holders: IntArray = np.zeros(num_blocks, dtype=np.int64)
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._sequences: dict[str, _Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def apply(self, scheduled: SchedulerOutput) -> None:
        """Take in what changed: dropped leave first, then new ones enter, then tables grow."""
        for request_id in scheduled.dropped:
            # A sequence may be dropped by the scheduler before it ever reached the runner.
            gone = self._sequences.pop(request_id, None)
            if gone is not None:
                self._free_rows.append(gone.row)
                self._holders[self._block_table[gone.row, : gone.num_blocks]] -= 1
        for new in scheduled.new:
            self._enter(new)
        for request_id, block_ids in scheduled.new_block_ids.items():
            self._append_blocks(self._sequences[request_id], block_ids)

    def _enter(self, new: NewSequence) -> None:
        assert new.request_id not in self._sequences, f"{new.request_id} is in the batch already"
        assert new.adapter is None, f"{new.request_id}: this runner has no adapters"
        prompt = new.token_ids[: new.num_prompt_tokens]
        output = new.token_ids[new.num_prompt_tokens :]
        sampling = new.sampling
        sequence = _Sequence(
            row=self._free_rows.pop(),
            token_ids=list(new.token_ids),
            num_prompt_tokens=new.num_prompt_tokens,
            num_blocks=0,
            sampling=sampling,
            seed=self._seed(new),
            adjustments=Adjustments(sampling, prompt, output, self._device)
            if needs_adjustments(sampling)
            else None,
            num_prompt_logprobs=None if output else sampling.num_prompt_logprobs,
        )
        self._sequences[new.request_id] = sequence
        self._append_blocks(sequence, new.block_ids)

    def _seed(self, new: NewSequence) -> int:
        if new.sampling.seed is not None:
            return new.sampling.seed
        # Without a seed of its own a request still draws the same numbers after a preemption.
        key = f"{self._base_seed}:{new.request_id}".encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")

    def _append_blocks(self, sequence: _Sequence, block_ids: list[int]) -> None:
        end = sequence.num_blocks + len(block_ids)
        assert end <= self._block_table.shape[1], "a sequence outgrew the longest one allowed"
        self._block_table[sequence.row, sequence.num_blocks : end] = block_ids
        sequence.num_blocks = end
        self._holders[block_ids] += 1

    def make_inputs(self, scheduled: SchedulerOutput) -> StepInputs:
        """The arrays of one step, after `apply` of the same."""
        tokens: list[int] = []
        rows: list[int] = []
        context_lens: list[int] = []
        sampled_rows: list[int] = []
        last_tokens: list[int] = []
        prompt_targets: list[PromptTargets] = []
        for index, request_id in enumerate(scheduled.request_ids):
            sequence = self._sequences[request_id]
            begin = scheduled.num_computed_tokens[index]
            end = begin + scheduled.num_scheduled_tokens[index]
            assert begin < end <= len(sequence.token_ids), f"{request_id}: tokens {begin} to {end}"
            assert end <= sequence.num_blocks * self._block_size, f"{request_id} lacks blocks"
            if sequence.num_prompt_logprobs is not None and begin + 1 < sequence.num_prompt_tokens:
                targets = sequence.token_ids[begin + 1 : min(end + 1, sequence.num_prompt_tokens)]
                prompt_targets.append(
                    PromptTargets(
                        request_id=request_id,
                        first=len(tokens),
                        token_ids=targets,
                        num_top=sequence.num_prompt_logprobs,
                    )
                )
            tokens.extend(sequence.token_ids[begin:end])
            rows.append(sequence.row)
            context_lens.append(end)
            if end == len(sequence.token_ids):
                sampled_rows.append(index)
                last_tokens.append(len(tokens) - 1)
        lengths = np.array(scheduled.num_scheduled_tokens, dtype=np.int64)
        begins = np.array(scheduled.num_computed_tokens, dtype=np.int64)
        # Position of token j of a row that starts at flat index s and position p: j − s + p.
        shifts = begins - (np.cumsum(lengths) - lengths)
        positions = np.arange(len(tokens), dtype=np.int64) + np.repeat(shifts, lengths)
        table_rows = np.array(rows, dtype=np.int64)
        blocks = self._block_table[np.repeat(table_rows, lengths), positions // self._block_size]
        slots = blocks * self._block_size + positions % self._block_size
        if scheduled.attend_only:
            unstored = [request_id in scheduled.attend_only for request_id in scheduled.request_ids]
            slots[np.repeat(np.array(unstored), lengths)] = -1
        written = blocks[slots >= 0]
        assert (self._holders[written] == 1).all(), "a step writes into a block that is shared"
        widest = -(-max(context_lens) // self._block_size)
        return StepInputs(
            token_ids=np.array(tokens, dtype=np.int64),
            positions=positions,
            slots=slots,
            query_lens=list(scheduled.num_scheduled_tokens),
            context_lens=context_lens,
            block_table=self._block_table[table_rows, :widest],
            sampled_rows=sampled_rows,
            last_tokens=last_tokens,
            prompt_targets=prompt_targets,
        )

    def sampler_row(self, request_id: str) -> SamplerRow:
        sequence = self._sequences[request_id]
        position = len(sequence.token_ids)
        return SamplerRow(
            params=sequence.sampling,
            seed=sequence.seed,
            position=position,
            num_generated=position - sequence.num_prompt_tokens,
            adjustments=sequence.adjustments,
        )

    def append_token(self, request_id: str, token: int) -> None:
        sequence = self._sequences[request_id]
        sequence.token_ids.append(token)
        if sequence.adjustments is not None:
            sequence.adjustments.add(token)
