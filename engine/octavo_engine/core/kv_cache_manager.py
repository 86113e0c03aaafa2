"""Block tables: which blocks a sequence has, which it can share, when others may find them."""

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass

from octavo_engine.core.block_hash import (
    BlockKey,
    HashFunction,
    encode_extras,
    encode_tokens,
    hash_block,
)
from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.forks import has_prompt
from octavo_engine.core.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a sequence would enter the cache: blocks found there, and how many new ones to add."""

    cached_block_ids: list[int]
    num_cached_tokens: int
    num_new_blocks: int
    num_consumed_blocks: int  # new ones, and cached ones that sit in the free list


class KVCacheManager:
    """Only full blocks whose every token is computed are ever shared."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool,
        make_digest: HashFunction = hash_block,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self._prefix_caching = prefix_caching
        self._make_digest = make_digest

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one sequence can hold when it has the cache for itself."""
        return self.pool.num_usable * self.block_size

    def find_fit(self, sequence: Sequence) -> Fit:
        """Look the sequence's known tokens up. Changes nothing but its list of keys."""
        cached = self._find_reusable(sequence)[: sequence.max_reusable_tokens // self.block_size]
        num_new_blocks = -(-len(sequence.token_ids) // self.block_size) - len(cached)
        return Fit(
            cached_block_ids=cached,
            num_cached_tokens=len(cached) * self.block_size,
            num_new_blocks=num_new_blocks,
            num_consumed_blocks=num_new_blocks + self.pool.count_free(cached),
        )

    def enter(self, sequence: Sequence, fit: Fit) -> None:
        """Give the sequence blocks for all of its known tokens.

        Whole prompts, though they are computed chunk by chunk: two prompts that hold half of what
        they need could wait for each other for ever.
        """
        assert not sequence.block_ids, f"{sequence.request_id} has blocks already"
        self.pool.take(fit.cached_block_ids)  # before allocate, which might give them out
        sequence.block_ids = fit.cached_block_ids + self.pool.allocate(fit.num_new_blocks)
        sequence.num_committed_blocks = len(fit.cached_block_ids)

    def missing_blocks(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks to add before the sequence can hold `num_tokens` tokens; 0 or less: none."""
        return -(-num_tokens // self.block_size) - len(sequence.block_ids)

    def extend(self, sequence: Sequence, num_blocks: int) -> list[int]:
        block_ids = self.pool.allocate(num_blocks)
        sequence.block_ids += block_ids
        return block_ids

    def commit(self, sequence: Sequence) -> None:
        """Let others find the full blocks that steps handed out so far compute.

        Called once the step is settled, so a block that no step computes cannot be found. Tokens
        that the host has not seen yet have no name, so their block waits for a later call.
        """
        if not self._prefix_caching:
            return
        num_known = min(sequence.num_computed_tokens, len(sequence.token_ids))
        num_full = num_known // self.block_size
        if num_full > sequence.num_committed_blocks:
            self._extend_keys(sequence, num_full)
            for index in range(sequence.num_committed_blocks, num_full):
                self.pool.register(sequence.block_ids[index], sequence.block_keys[index])
            sequence.num_committed_blocks = num_full

    def leave(self, sequence: Sequence) -> None:
        """Give the sequence's blocks back; those that are cached stay to be found."""
        self.pool.free(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_committed_blocks = 0

    def forget(self, sequence: Sequence) -> None:
        """Let nobody find what this sequence computed: its row went wrong, its KV may have too."""
        for key in sequence.block_keys:
            self.pool.forget(key)

    def check_invariants(self, sequences: AnySequence[Sequence]) -> None:
        self.pool.check_invariants()
        references = [0] * (self.pool.num_usable + 1)
        holders: dict[int, tuple[int, Sequence]] = {}
        for sequence in sequences:
            for index, block_id in enumerate(sequence.block_ids):
                references[block_id] += 1
                other_index, other = holders.setdefault(block_id, (index, sequence))
                if other is sequence:
                    assert other_index == index, f"block {block_id} comes twice in a table"
                    continue
                end = (index + 1) * self.block_size
                known = sequence.token_ids[:end]
                assert other_index == index, f"block {block_id} is shared by unequal sequences"
                assert other.token_ids[:end] == known, (
                    f"block {block_id} is shared by unequal sequences"
                )
                assert len(known) == end, f"block {block_id} is shared before it is full"
        for block_id, count in enumerate(references):
            found = self.pool.ref_count(block_id)
            assert found == count, f"block {block_id} has {found} references, {count} known"

    def _find_reusable(self, sequence: Sequence) -> list[int]:
        source = sequence.source
        if source is not None and has_prompt(source):
            shared = source.block_ids[: sequence.num_prompt_tokens // self.block_size]
            if len(sequence.block_keys) < len(shared):
                sequence.block_keys = source.block_keys[: len(shared)]
            if not (self._prefix_caching and sequence.num_preemptions):
                return shared
            # It may find its own answer's blocks, too.
            return max(self._find_prefix(sequence), shared, key=len)
        return self._find_prefix(sequence) if self._prefix_caching else []

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        found: list[int] = []
        for index in range(len(sequence.token_ids) // self.block_size):
            self._extend_keys(sequence, index + 1)
            block_id = self.pool.find(sequence.block_keys[index])
            if block_id is None:
                break
            cached_key = self.pool.key_of(block_id)
            assert cached_key is not None
            # The next key gets this one as its parent, and shared parents compare in one step.
            sequence.block_keys[index] = cached_key
            found.append(block_id)
        return found

    def _extend_keys(self, sequence: Sequence, num_blocks: int) -> None:
        keys = sequence.block_keys
        if len(keys) >= num_blocks:
            return
        extras = encode_extras(sequence.spec.cache_salt, sequence.spec.adapter)
        for index in range(len(keys), num_blocks):
            start = index * self.block_size
            tokens = encode_tokens(sequence.token_ids[start : start + self.block_size])
            parent: BlockKey | None = keys[index - 1] if index else None
            keys.append(BlockKey(parent, tokens, extras, self._make_digest))
