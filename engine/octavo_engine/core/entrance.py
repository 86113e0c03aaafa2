"""Which waiting sequences enter in a step, and who may overtake whom.

They enter in order of service: the old ones, then by priority, then arrival. One that cannot enter
yet is overtaken, by others of its priority only, and never for ever:

    lacks blocks            at most `max_overtakes` enter before it; from then on nobody does, so
                            that what the running ones give back adds up for it
    lacks blocks, preempted nobody enters before it: it has given way already
    lacks tokens            others may begin, being shorter. In time it is the oldest of all that
                            have a prompt to compute, and the oldest always has its share
"""

from collections.abc import Iterator
from typing import Final

from octavo_engine.core.kv_cache_manager import Fit, KVCacheManager
from octavo_engine.core.prefill_share import PrefillShare
from octavo_engine.core.scheduler_config import SchedulerConfig
from octavo_engine.core.sequence import Blocked, Sequence
from octavo_engine.core.waiting_queue import OrderedSequences

# Waiting sequences that are looked at in one step, when those before them cannot enter.
_MAX_LOOKED_AT: Final = 32
# Look-ups of a waiting sequence cost at most so many blocks a step on average.
_BLOCKS_LOOKED_UP_PER_STEP: Final = 16


class Entrance:
    """Decides only; whoever asks carries it out."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        waiting: OrderedSequences,
        running: OrderedSequences,
    ) -> None:
        self._config = config
        self._kv = kv
        self._waiting = waiting
        self._running = running

    def let_in(
        self, prompts: PrefillShare, budget: int, step_number: int
    ) -> Iterator[tuple[Sequence, Fit]]:
        """Sequences that are to enter, taken out of the queue; each has entered before the next.

        prompts: who else has prompts to compute; budget: tokens of the step for all of these.
        """
        lacking_blocks: list[Sequence] = []
        index = 0
        while index < len(self._waiting) and len(self._running) < self._config.num_seats:
            sequence = self._waiting[index]
            if index and sequence.spec.priority != self._waiting[0].spec.priority:
                break
            if sequence.num_placeholders:
                break  # preempted while a step was under way: its newest token is still to come
            fit = self._find_entry(sequence, prompts, budget, step_number)
            if fit is not None:
                del self._waiting[index]
                yield sequence, fit
                prompts.add(sequence, sequence.num_tokens - sequence.num_computed_tokens)
                for overtaken in lacking_blocks:
                    overtaken.num_overtaken += 1
                if self._is_any_overdue(lacking_blocks):
                    break
                continue
            if len(prompts) >= budget:
                break
            assert sequence.blocked is not None
            if self._lacks_blocks(sequence.blocked.num_blocks):
                lacking_blocks.append(sequence)
                if sequence.num_preemptions or self._is_any_overdue(lacking_blocks):
                    break
            index += 1
            if index >= _MAX_LOOKED_AT:
                break

    def _find_entry(
        self, sequence: Sequence, prompts: PrefillShare, budget: int, step_number: int
    ) -> Fit | None:
        """How a sequence can enter now, or None and a note of what it lacks.

        While the note says that it cannot, its prefix is looked up again only once in a while: the
        longer the prompt, the more seldom.
        """
        blocked = sequence.blocked
        if blocked is not None and step_number < blocked.look_again_step:
            lacks = self._lacks_blocks(blocked.num_blocks)
            if lacks or not prompts.has_room_for(sequence, blocked.num_tokens, budget):
                return None
        fit = self._kv.find_fit(sequence)
        # If all is cached, the last token is still run for its logits, which are not.
        num_tokens = max(1, sequence.num_tokens - fit.num_cached_tokens)
        lacks = self._lacks_blocks(fit.num_consumed_blocks)
        if lacks or not prompts.has_room_for(sequence, num_tokens, budget):
            num_blocks = len(sequence.token_ids) // self._config.block_size
            sequence.blocked = Blocked(
                num_blocks=fit.num_consumed_blocks,
                num_tokens=num_tokens,
                look_again_step=step_number + 1 + num_blocks // _BLOCKS_LOOKED_UP_PER_STEP,
            )
            return None
        sequence.blocked = None
        return fit

    def _lacks_blocks(self, num_blocks: int) -> bool:
        """One block is left for each that runs, lest the newcomer be preempted at once."""
        return num_blocks + len(self._running) > self._kv.pool.num_free

    def _is_any_overdue(self, sequences: list[Sequence]) -> bool:
        return any(s.num_overtaken >= self._config.max_overtakes for s in sequences)
