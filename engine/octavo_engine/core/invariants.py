"""Everything that must hold between two calls of the scheduler. For tests: looks at every block."""

from collections.abc import Mapping

from octavo_engine.core.admission import Admission
from octavo_engine.core.forks import Forks
from octavo_engine.core.kv_cache_manager import KVCacheManager
from octavo_engine.core.sequence import Sequence, SequenceState
from octavo_engine.core.waiting_queue import OrderedSequences


def check_places(
    sequences: Mapping[str, Sequence],
    *,
    waiting: OrderedSequences,
    running: OrderedSequences,
    forks: Forks,
    num_seats: int,
) -> None:
    """Each sequence is in one place, the one that its state names."""
    waiting.check_invariants()
    running.check_invariants()
    assert len(running) <= num_seats, "more run than there are seats"
    assert all(s.state is SequenceState.WAITING for s in waiting)
    assert all(s.state is SequenceState.RUNNING for s in running)
    assert all(s.state is SequenceState.HELD for s in forks)
    num_draining = sum(s.state is SequenceState.DRAINING for s in sequences.values())
    num_placed = len(waiting) + len(running) + len(forks) + num_draining
    assert num_placed == len(sequences), "a sequence is in no place, or in two"
    assert len(list(forks)) == len(forks), "the held forks are not as many as were counted"
    for fork in forks:
        assert fork.source is not None
        source = sequences.get(fork.source.request_id)
        assert source is fork.source, f"{fork.request_id} waits for one that is gone"


def check_sequence(sequence: Sequence, kv: KVCacheManager) -> None:
    """Its counts fit each other, its state and its blocks."""
    state, name = sequence.state, sequence.request_id
    assert state is not SequenceState.FINISHED, f"{name} has ended but is still listed"
    assert sequence.num_tokens == len(sequence.token_ids) + sequence.num_placeholders, name
    assert 0 <= sequence.num_computed_tokens <= sequence.num_tokens, name
    assert sequence.num_tokens <= sequence.max_total_tokens, name
    if state is SequenceState.RUNNING:
        assert kv.missing_blocks(sequence, sequence.num_computed_tokens) <= 0, name
        surplus = -kv.missing_blocks(sequence, sequence.num_tokens)
        assert surplus <= 0, f"{name} holds {surplus} blocks that it cannot use yet"
    else:
        assert not sequence.block_ids, f"{name} holds blocks but has no seat"
    if state in (SequenceState.WAITING, SequenceState.HELD):
        assert sequence.num_computed_tokens == 0, f"{name} has no blocks to be computed in"


def check_sums(sequences: Mapping[str, Sequence], kv: KVCacheManager, admission: Admission) -> None:
    """Blocks add up over the sequences, and so do the tokens that wait."""
    kv.check_invariants(list(sequences.values()))
    assert kv.pool.num_free + kv.pool.num_used == kv.pool.num_usable, "blocks are lost"
    unbegun = sum(s.num_queued_tokens for s in sequences.values() if s.first_scheduled_s is None)
    assert admission.num_queued_tokens == unbegun, "the queue's tokens are miscounted"
