"""A step while it is being drafted, and what must be remembered of it until its tokens come."""

from octavo_engine.core.messages import NewSequence, SchedulerOutput
from octavo_engine.core.request import SequenceUpdate
from octavo_engine.core.sequence import Sequence


class Step:
    """Rows are parallel lists, as in the message made of them."""

    __slots__ = (
        "_attend_only",
        "_computed",
        "_new",
        "_new_block_ids",
        "_request_ids",
        "_scheduled",
        "dropped",
        "ended",
        "num_tokens",
        "number",
        "samples",
        "sequences",
    )

    def __init__(self, number: int, dropped: list[str], ended: list[SequenceUpdate]) -> None:
        self.number = number
        self.dropped = dropped
        self.ended = ended  # by the scheduler's own decision, still to be told
        self.num_tokens = 0
        self.sequences: list[Sequence] = []
        self.samples: list[bool] = []  # whether row i reaches its sequence's end: brings a token
        self._request_ids: list[str] = []
        self._computed: list[int] = []
        self._scheduled: list[int] = []
        self._new: list[NewSequence] = []
        self._new_block_ids: dict[str, list[int]] = {}
        self._attend_only: list[str] = []

    def add_row(self, sequence: Sequence, num_new: int) -> bool:
        """Run `num_new` more tokens of a sequence; returns whether that brings a new token."""
        computed = sequence.num_computed_tokens
        self._request_ids.append(sequence.request_id)
        self._computed.append(computed)
        self._scheduled.append(num_new)
        self.num_tokens += num_new
        sequence.num_computed_tokens = computed = computed + num_new
        samples = computed == sequence.num_tokens
        self.sequences.append(sequence)
        self.samples.append(samples)
        if samples:
            sequence.num_tokens += 1
            sequence.num_placeholders += 1
        return samples

    def starts(self) -> dict[str, int]:
        """The first position that each row computes."""
        return dict(zip(self._request_ids, self._computed, strict=True))

    def introduce(self, sequence: Sequence, *, attend_only: bool) -> None:
        """Hand a sequence to the runner with everything it must know of it."""
        assert not sequence.num_placeholders, "its tokens are not all known"
        self._new.append(
            NewSequence(
                request_id=sequence.request_id,
                token_ids=list(sequence.token_ids),
                num_prompt_tokens=sequence.num_prompt_tokens,
                block_ids=list(sequence.block_ids),
                sampling=sequence.sampling,
                adapter=sequence.spec.adapter,
            )
        )
        if attend_only:
            self._attend_only.append(sequence.request_id)

    def append_blocks(self, sequence: Sequence, block_ids: list[int]) -> None:
        self._new_block_ids[sequence.request_id] = block_ids

    def make_output(self) -> SchedulerOutput:
        return SchedulerOutput(
            step=self.number,
            request_ids=self._request_ids,
            num_computed_tokens=self._computed,
            num_scheduled_tokens=self._scheduled,
            new=self._new,
            new_block_ids=self._new_block_ids,
            attend_only=frozenset(self._attend_only),
            dropped=self.dropped,
        )
