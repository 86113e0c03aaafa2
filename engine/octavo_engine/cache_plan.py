"""How large the KV cache is and how long a sequence may be, from settings and memory."""

from dataclasses import dataclass
from typing import Final

from octavo_engine.errors import CannotStart
from octavo_sizing.memory import (
    MIN_AUTO_MODEL_LEN,
    KvPool,
    MemoryBudget,
    activation_bytes,
    block_bytes,
    format_bytes,
    longest_model_len,
    pool_from_bytes,
    pool_needed,
    weights_bytes,
)
from octavo_sizing.shape import ModelShape
from octavo_wire.failures import Reason
from octavo_wire.settings import EngineSettings

# A bare machine has other things to do: the cache takes this share of what is free, at most.
UNLIMITED_SHARE: Final = 0.25
UNLIMITED_MOST_BYTES: Final = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory that the model will live in.

    limit_bytes: of the container or the device; None on a machine where nothing limits the process.
    overhead_bytes: spent already, or by others of this process, beside the model.
    available_bytes: free right now.
    """

    limit_bytes: int | None
    overhead_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    pool: KvPool
    max_model_len: int
    budget: MemoryBudget


def plan_cache(
    settings: EngineSettings, shape: ModelShape, memory: DeviceMemory, *, element_bytes: int
) -> CachePlan:
    """Size the cache. Raises CannotStart with the numbers when model or sequence does not fit."""
    wanted = settings.max_model_len
    if wanted is not None and wanted > shape.context_length:
        raise CannotStart(
            Reason.INVALID_SETTING,
            f"--max-model-len {wanted} is more than the model's context of "
            f"{shape.context_length} tokens.",
            f"Set it to {shape.context_length} or less, or to auto.",
        )
    planner = _Planner(settings, shape, memory, element_bytes)
    if wanted is None:
        length, pool = longest_model_len(planner.pool_at, context_length=shape.context_length)
        if length < min(shape.context_length, MIN_AUTO_MODEL_LEN):
            raise planner.too_little(min(shape.context_length, MIN_AUTO_MODEL_LEN), length)
    else:
        length, pool = wanted, planner.pool_at(wanted)
        if length < 2:
            raise CannotStart(
                Reason.INVALID_SETTING,
                "--max-model-len 1 leaves no room for an answer.",
                "Set it to 2 or more, or to auto.",
            )
        if pool.usable_tokens < length:
            longest, _ = longest_model_len(planner.pool_at, context_length=length)
            raise planner.too_little(length, longest)
    return CachePlan(
        pool=planner.no_more_than_needed(pool, length),
        max_model_len=length,
        budget=planner.budget(length),
    )


class _Planner:
    def __init__(
        self,
        settings: EngineSettings,
        shape: ModelShape,
        memory: DeviceMemory,
        element_bytes: int,
    ) -> None:
        self._settings = settings
        self._shape = shape
        self._memory = memory
        self._element_bytes = element_bytes
        self._block_bytes = block_bytes(
            shape, block_size=settings.block_size, element_bytes=element_bytes
        )

    def budget(self, max_model_len: int) -> MemoryBudget:
        memory = self._memory
        unlimited = memory.limit_bytes is None
        return MemoryBudget(
            limit_bytes=memory.available_bytes + memory.overhead_bytes
            if memory.limit_bytes is None
            else memory.limit_bytes,
            utilization=1.0 if unlimited else self._settings.gpu_memory_utilization,
            overhead_bytes=memory.overhead_bytes,
            weights_bytes=weights_bytes(self._shape, self._element_bytes),
            activation_bytes=activation_bytes(
                self._shape,
                max_num_batched_tokens=self._settings.max_num_batched_tokens,
                max_num_seqs=self._settings.max_num_seqs,
                max_model_len=max_model_len,
                element_bytes=self._element_bytes,
            ),
        )

    def pool_at(self, max_model_len: int) -> KvPool:
        """The pool that memory or the setting gives when sequences may be that long."""
        budget = self.budget(max_model_len)
        cache_bytes = budget.cache_bytes
        if self._memory.limit_bytes is None:
            share = int(self._memory.available_bytes * UNLIMITED_SHARE)
            cache_bytes = min(cache_bytes, share, UNLIMITED_MOST_BYTES)
        if self._settings.kv_cache_memory is not None:
            # An explicit size goes past the share, never past the limit itself.
            beside = budget.overhead_bytes + budget.weights_bytes
            if self._settings.kv_cache_memory > budget.limit_bytes - beside:
                raise CannotStart(
                    Reason.INSUFFICIENT_MEMORY,
                    f"--kv-cache-memory asks for {format_bytes(self._settings.kv_cache_memory)}, "
                    f"and of {format_bytes(budget.limit_bytes)} the process "
                    f"({format_bytes(budget.overhead_bytes)}) and the weights "
                    f"({format_bytes(budget.weights_bytes)}) leave "
                    f"{format_bytes(budget.limit_bytes - beside)}.",
                    "Lower --kv-cache-memory, or raise the memory limit.",
                )
            cache_bytes = self._settings.kv_cache_memory
        return pool_from_bytes(
            cache_bytes, block_size=self._settings.block_size, bytes_per_block=self._block_bytes
        )

    def no_more_than_needed(self, pool: KvPool, max_model_len: int) -> KvPool:
        needed = pool_needed(
            max_num_seqs=self._settings.max_num_seqs,
            max_model_len=max_model_len,
            block_size=self._settings.block_size,
            bytes_per_block=self._block_bytes,
        )
        return min(pool, needed, key=lambda candidate: candidate.num_blocks)

    def too_little(self, length: int, longest: int) -> CannotStart:
        """The refusal for sequences of `length`, when `longest` tokens would fit (0: none)."""
        budget = self.budget(length)
        needed = pool_needed(
            max_num_seqs=1,
            max_model_len=length,
            block_size=self._settings.block_size,
            bytes_per_block=self._block_bytes,
        ).nbytes
        available = max(0, self.pool_at(length).nbytes)
        message = (
            f"A sequence of {length} tokens needs {format_bytes(needed)} of KV cache, and "
            f"{format_bytes(available)} can be had: of {format_bytes(budget.limit_bytes)}, "
            f"{budget.utilization:.0%} may be used, and the process takes "
            f"{format_bytes(budget.overhead_bytes)}, the weights "
            f"{format_bytes(budget.weights_bytes)}, the largest step "
            f"{format_bytes(budget.activation_bytes)}."
        )
        if self._settings.kv_cache_memory is not None:
            message = (
                f"A sequence of {length} tokens needs {format_bytes(needed)} of KV cache, and "
                f"--kv-cache-memory is {format_bytes(self._settings.kv_cache_memory)}."
            )
            raise_to = f"raise --kv-cache-memory to {format_bytes(needed)}"
        else:
            total = needed + budget.usable_bytes - budget.cache_bytes
            raise_to = f"raise the memory limit to {format_bytes(self._limit_for(total))} or more"
        ways = [f"set --max-model-len to {longest} or less"] if longest >= 2 else []
        ways.append(raise_to)
        if self._element_bytes > 2:
            ways.append("set --dtype bfloat16, which halves weights and cache")
        if longest < 2 and budget.overhead_bytes + budget.weights_bytes < budget.usable_bytes:
            ways.append(
                f"lower --max-num-seqs (now {self._settings.max_num_seqs}) and "
                f"--max-num-batched-tokens (now {self._settings.max_num_batched_tokens})"
            )
        next_action = f"{', or '.join(ways)}."
        next_action = next_action[0].upper() + next_action[1:]
        return CannotStart(Reason.INSUFFICIENT_MEMORY, message, next_action)

    def _limit_for(self, total_bytes: int) -> int:
        """The limit whose usable share is `total_bytes`, rounded up to whole 16 MiB."""
        limit = total_bytes / self._settings.gpu_memory_utilization
        return -(-int(limit) // 2**24) * 2**24
