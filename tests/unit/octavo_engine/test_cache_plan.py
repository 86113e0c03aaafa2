"""The decision alone, with the shape of a real model and memory in round numbers."""

from typing import Any

import pytest

from octavo_engine.cache_plan import CachePlan, DeviceMemory, plan_cache
from octavo_engine.errors import CannotStart
from octavo_sizing.shape import ModelShape
from octavo_wire.settings import EngineSettings

GIB = 2**30
SMOLLM2 = ModelShape(
    architecture="llama",
    layers=30,
    hidden_size=576,
    intermediate_size=1536,
    attention_heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    context_length=8192,
    tied_embeddings=True,
)


def plan(
    *, limit: int | None, free: int = 256 * GIB, element_bytes: int = 4, **settings: Any
) -> CachePlan:
    return plan_cache(
        EngineSettings(model="m", **settings),
        SMOLLM2,
        DeviceMemory(limit_bytes=limit, overhead_bytes=GIB // 4, available_bytes=free),
        element_bytes=element_bytes,
    )


def total(chosen: CachePlan) -> int:
    budget = chosen.budget
    return (
        budget.overhead_bytes + budget.weights_bytes + budget.activation_bytes + chosen.pool.nbytes
    )


@pytest.mark.parametrize("utilization", [0.7, 0.92, 1.0])
def test_everything_together_stays_below_the_share_of_the_limit(utilization: float) -> None:
    chosen = plan(limit=2 * GIB, gpu_memory_utilization=utilization)
    spare = 2 * GIB * utilization - total(chosen)
    assert 0 <= spare < chosen.pool.bytes_per_block + 1


def test_a_small_container_on_a_large_node_gets_a_small_cache() -> None:  # K3
    assert total(plan(limit=2 * GIB, free=256 * GIB)) <= 2 * GIB


def test_a_machine_without_a_limit_keeps_most_of_its_memory() -> None:
    assert plan(limit=None, free=8 * GIB).pool.nbytes <= 2 * GIB
    assert 3.9 * GIB < plan(limit=None, free=256 * GIB).pool.nbytes <= 4 * GIB


def test_every_longer_length_is_refused_and_the_auto_length_is_taken() -> None:  # K2
    auto = plan(limit=5 * GIB // 4)
    assert 256 <= auto.max_model_len < 8192
    taken = plan(limit=5 * GIB // 4, max_model_len=auto.max_model_len)
    assert taken.pool.usable_tokens >= auto.max_model_len
    with pytest.raises(CannotStart) as caught:
        plan(limit=5 * GIB // 4, max_model_len=auto.max_model_len + 1)
    assert f"--max-model-len to {auto.max_model_len} or less" in caught.value.failure.next_action


def test_half_precision_doubles_the_pool() -> None:
    wide = plan(limit=None, kv_cache_memory=GIB)
    narrow = plan(limit=None, kv_cache_memory=GIB, element_bytes=2)
    assert narrow.pool.num_blocks // wide.pool.num_blocks == 2


def test_an_explicit_size_passes_the_share_but_not_the_limit() -> None:
    plan(limit=2 * GIB, gpu_memory_utilization=0.5, kv_cache_memory=GIB)
    with pytest.raises(CannotStart, match="--kv-cache-memory asks for"):
        plan(limit=2 * GIB, gpu_memory_utilization=0.5, kv_cache_memory=3 * GIB // 2)


def test_weights_that_do_not_fit_are_said_so() -> None:
    with pytest.raises(CannotStart) as caught:
        plan(limit=GIB // 2)
    failure = caught.value.failure
    assert "the weights 513 MiB" in failure.message
    assert failure.next_action.startswith("Raise the memory limit to")
    assert "--max-num-seqs" not in failure.next_action  # no help: the weights alone are too large
