"""Blocks of the KV cache: who uses them, which are free, and what the free ones still hold.

    used      ref_count > 0: in that many sequences' block tables
    free      ref_count = 0: in the free list, least recently used first
    cached    has a key, used or free: a look-up may take it

A freed block keeps its key until it is given out again, so cache and free memory are one pool.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from octavo_engine.core.block_hash import BlockKey, is_same_content

NULL_BLOCK: Final = 0  # never given out; padded rows of a step may point at it


class _Block:
    """One block; `before` and `after` are its neighbours in the free list while it is free."""

    __slots__ = ("after", "before", "block_id", "key", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: BlockKey | None = None
        self.before: _Block = self
        self.after: _Block = self


class BlockPool:
    """Allocation and look-up in constant time per block. Block 0 is the null block."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, "a pool needs the null block and one more"
        self._blocks = [_Block(i) for i in range(num_blocks)]
        # The null block is the ring's anchor: after it comes the next block to give out.
        self._anchor = self._blocks[NULL_BLOCK]
        self._num_free = 0
        self._cached: dict[bytes, _Block] = {}
        for block in self._blocks[1:]:
            self._insert_before(self._anchor, block)

    @property
    def num_usable(self) -> int:
        return len(self._blocks) - 1

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.num_usable - self._num_free

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def ref_count(self, block_id: int) -> int:
        return self._blocks[block_id].ref_count

    def key_of(self, block_id: int) -> BlockKey | None:
        return self._blocks[block_id].key

    def allocate(self, count: int) -> list[int]:
        """Give out the least recently used free blocks; what they held is forgotten."""
        assert 0 <= count <= self._num_free, f"{count} blocks asked, {self._num_free} free"
        block_ids = []
        for _ in range(count):
            block = self._anchor.after
            self._unlink(block)
            if block.key is not None:
                del self._cached[block.key.digest]
                block.key = None
            block.ref_count = 1
            block_ids.append(block.block_id)
        return block_ids

    def find(self, key: BlockKey) -> int | None:
        """The block that holds exactly this content, used or free."""
        block = self._cached.get(key.digest)
        if block is None or not is_same_content(block.key, key):
            return None
        return block.block_id

    def count_free(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks sit in the free list, so that a take would consume them."""
        return sum(self._blocks[block_id].ref_count == 0 for block_id in block_ids)

    def take(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each of these blocks: found by look-up, or used by another."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            is_known = block.key is not None or block.ref_count > 0
            assert is_known, f"block {block_id} is taken but holds nothing known"
            if block.ref_count == 0:
                self._unlink(block)
            block.ref_count += 1

    def free(self, block_table: Sequence[int]) -> None:
        """Drop one reference to each block of a sequence, its last block first.

        So the tail of a chain is given out before its head, which more prompts have in common.
        """
        for block_id in reversed(block_table):
            block = self._blocks[block_id]
            assert block.ref_count > 0, f"block {block_id} is freed twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                # A block that nobody can look up is worth nothing: it is the first to go.
                place = self._anchor.after if block.key is None else self._anchor
                self._insert_before(place, block)

    def register(self, block_id: int, key: BlockKey) -> None:
        """Let look-ups find this block; a block that holds the same already stays the one."""
        block = self._blocks[block_id]
        assert block.ref_count > 0, f"block {block_id} is registered but unused"
        if block.key is None and key.digest not in self._cached:
            block.key = key
            self._cached[key.digest] = block

    def forget(self, key: BlockKey) -> None:
        """Let no look-up find this content any more; sequences that use the block keep it."""
        block = self._cached.get(key.digest)
        if block is not None and is_same_content(block.key, key):
            del self._cached[key.digest]
            block.key = None

    def check_invariants(self) -> None:
        assert self._anchor.ref_count == 0, "the null block is used"
        assert self._anchor.key is None, "the null block is cached"
        free_ids = []
        block = self._anchor.after
        while block is not self._anchor:
            assert block.after.before is block, f"the free list is torn at block {block.block_id}"
            free_ids.append(block.block_id)
            assert len(free_ids) <= self.num_usable, "the free list runs in a circle"
            block = block.after
        assert len(free_ids) == self._num_free, "the free list's length is not its count"
        unused = {b.block_id for b in self._blocks[1:] if b.ref_count == 0}
        assert set(free_ids) == unused, "a block is free and used, or neither"
        keyed = {b.key.digest: b for b in self._blocks if b.key is not None}
        assert keyed == self._cached, "the look-up table and the blocks' keys differ"

    def _insert_before(self, place: _Block, block: _Block) -> None:
        block.before, block.after = place.before, place
        place.before.after = block
        place.before = block
        self._num_free += 1

    def _unlink(self, block: _Block) -> None:
        block.before.after = block.after
        block.after.before = block.before
        block.before = block.after = block
        self._num_free -= 1
