"""Joins the two towers: from settings to a loaded model, its cache, a scheduler and a runner."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from octavo_engine import limits, threads
from octavo_engine.cache_plan import CachePlan, DeviceMemory, plan_cache
from octavo_engine.config import CacheShape, ModelDescription, TokenizerSpec
from octavo_engine.core.messages import Runner
from octavo_engine.core.scheduler import Scheduler, SchedulerConfig
from octavo_engine.errors import CannotStart
from octavo_engine.kernels.cpu.gather_attention import GatherAttention
from octavo_engine.models.config import ModelNotSupportedError
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.gguf import GgufModel, tokenizer_spec
from octavo_engine.models.weights import check_names, load_weights
from octavo_engine.runner.input_batch import InputBatch
from octavo_engine.runner.kv_cache import KvCache
from octavo_engine.runner.model_runner import ModelRunner
from octavo_fetch import ModelNotFoundError, resolve
from octavo_sizing.gguf_header import GgufError
from octavo_sizing.memory import blocks_for, format_bytes
from octavo_sizing.shape import ShapeError
from octavo_wire.failures import Reason
from octavo_wire.settings import EngineSettings

Progress = Callable[[str, float], None]

_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# What the HTTP server and the tokenizer add to the process after the model is loaded.
SERVER_BYTES: Final = 128 * 2**20
# What the driver takes for a process beside torch's own allocations.
CUDA_CONTEXT_BYTES: Final = 512 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    scheduler: Scheduler
    runner: Runner
    description: ModelDescription


def build_engine(settings: EngineSettings, *, progress: Progress | None = None) -> BuiltEngine:
    """Load the model of `settings` and size everything around it.

    `progress(phase, share)` is called with the phases "header", "weights" and "cache" and a share
    from 0 to 1. Raises CannotStart for whatever a user can put right.
    """
    report = progress or (lambda phase, share: None)
    threads.apply_to_torch()
    report("header", 0.0)
    path = _find(settings.model)
    device = _device(settings.device)
    dtype = _dtype(settings.dtype, device)
    source, tokenizer = _read_header(path)
    plan = plan_cache(
        settings,
        source.config.shape,
        _device_memory(device),
        element_bytes=dtype.itemsize,
    )
    report("header", 1.0)
    shape = source.config.shape
    cache_shape = CacheShape(
        num_blocks=plan.pool.num_blocks,
        block_size=plan.pool.block_size,
        bytes_per_block=plan.pool.bytes_per_block,
    )
    try:
        model = Decoder(source.config, max_positions=plan.max_model_len, dtype=dtype, device=device)
        load_weights(model, source, lambda share: report("weights", share))
        report("cache", 0.0)
        cache = KvCache(
            cache_shape,
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            dtype=dtype,
            device=device,
        )
    except ModelNotSupportedError as error:
        raise _not_supported(path, error) from None
    except torch.OutOfMemoryError:
        raise _device_is_full(plan) from None
    except RuntimeError as error:
        # What torch raises on a CPU; it has no type of its own.
        if "allocate memory" not in str(error):
            raise
        raise CannotStart(
            Reason.INSUFFICIENT_MEMORY,
            f"The system gives this process no more memory: {error}. Weights take "
            f"{format_bytes(plan.budget.weights_bytes)} and the KV cache "
            f"{format_bytes(plan.pool.nbytes)}.",
            "Set a smaller --kv-cache-memory, or free memory on this machine.",
        ) from None
    runner = ModelRunner(
        model,
        GatherAttention(cache.keys, cache.values),
        InputBatch(
            max_num_seqs=settings.max_num_seqs,
            max_blocks=blocks_for(plan.max_model_len, settings.block_size),
            num_blocks=cache_shape.num_blocks,
            block_size=settings.block_size,
            device=device,
            base_seed=secrets.randbits(63),
        ),
    )
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=cache_shape.num_blocks,
            block_size=cache_shape.block_size,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=plan.max_model_len,
            prefix_caching=settings.prefix_caching,
            max_queued_requests=settings.max_queued_requests,
            max_queued_tokens=settings.max_queued_tokens,
            priority_wait_s=settings.priority_wait_seconds,
        )
    )
    report("cache", 1.0)
    return BuiltEngine(
        scheduler=scheduler,
        runner=runner,
        description=ModelDescription(
            name=settings.served_model_name or path.stem,
            vocab_size=shape.vocab_size,
            max_model_len=plan.max_model_len,
            tokenizer=tokenizer,
            cache=cache_shape,
            notes=_notes(settings, plan, device, dtype),
        ),
    )


def _find(uri: str) -> Path:
    try:
        return resolve(uri)
    except ModelNotFoundError as error:
        raise CannotStart(Reason.MODEL_NOT_FOUND, error.message, error.next_action) from None


def _device(wanted: str) -> str:
    if wanted == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise CannotStart(
            Reason.ACCELERATOR_NOT_FOUND,
            "--device cuda was asked for, and torch sees no CUDA device"
            + ("." if torch.version.cuda else ": this torch is built without CUDA."),
            "Run on a machine with a GPU and its driver, with a CUDA build of torch, or set "
            "--device cpu.",
        )
    return "cpu"


def _dtype(wanted: str, device: str) -> torch.dtype:
    if wanted == "auto":
        return torch.float32 if device == "cpu" else torch.bfloat16
    return _DTYPES[wanted]


def _read_header(path: Path) -> tuple[GgufModel, TokenizerSpec]:
    try:
        source = GgufModel(path)
        check_names(source)
        return source, tokenizer_spec(source.header)
    except ModelNotSupportedError as error:
        raise _not_supported(path, error) from None
    except (GgufError, ShapeError, OSError) as error:
        raise CannotStart(
            Reason.MODEL_UNREADABLE,
            f"The model file {path.name} cannot be read: {error}.",
            "Check that it is a complete GGUF file that this process may read; fetch it again if "
            "it was cut off.",
        ) from None


def _not_supported(path: Path, error: ModelNotSupportedError) -> CannotStart:
    return CannotStart(
        Reason.MODEL_NOT_SUPPORTED,
        f"The model {path.name} is not supported: {error}",
        "Choose a model of the llama architecture, as a GGUF file in F32, F16, BF16, Q8_0, Q4_0 or "
        "Q4_1.",
    )


def _device_memory(device: str) -> DeviceMemory:
    """Of this process alone: two engines that start on one GPU do not charge each other."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return DeviceMemory(
            limit_bytes=total,
            overhead_bytes=torch.cuda.memory_reserved() + CUDA_CONTEXT_BYTES,
            available_bytes=free,
        )
    return DeviceMemory(
        limit_bytes=limits.memory_limit(),
        overhead_bytes=limits.resident_memory() + SERVER_BYTES,
        available_bytes=limits.available_memory(),
    )


def _device_is_full(plan: CachePlan) -> CannotStart:
    free, total = torch.cuda.mem_get_info()
    return CannotStart(
        Reason.INSUFFICIENT_MEMORY,
        f"The GPU ran full while the model was loaded: weights take "
        f"{format_bytes(plan.budget.weights_bytes)} and the KV cache "
        f"{format_bytes(plan.pool.nbytes)}, of {format_bytes(total)} now {format_bytes(free)} are "
        "free. Another process may hold the rest.",
        "Lower --gpu-memory-utilization to the share that this engine may have, set "
        "--kv-cache-memory, or stop the other process.",
    )


def _notes(settings: EngineSettings, plan: CachePlan, device: str, dtype: torch.dtype) -> list[str]:
    pool = plan.pool
    chosen = "as set" if settings.max_model_len else "the longest that fits"
    return [
        f"computing in {str(dtype).removeprefix('torch.')} on {device} with "
        f"{torch.get_num_threads()} threads",
        f"weights take {format_bytes(plan.budget.weights_bytes)}",
        f"KV cache: {pool.num_blocks} blocks of {pool.block_size} tokens, "
        f"{format_bytes(pool.nbytes)}, {pool.usable_tokens} tokens",
        f"sequences may be {plan.max_model_len} tokens long ({chosen})",
    ]
