import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_engine import build, limits
from octavo_engine.build import BuiltEngine, build_engine
from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import RequestSpec
from octavo_engine.errors import CannotStart, Overloaded
from octavo_wire.failures import Reason
from octavo_wire.settings import EngineSettings, parse_settings
from support.steps import drive, greedy
from support.tiny_gguf import TINY, write_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny-model.gguf").path


def start(model: Path | str, **changes: Any) -> BuiltEngine:
    settings = EngineSettings(model=str(model), device="cpu", max_num_seqs=4)
    return build_engine(replace(settings, **changes))


def refusal(model: Path | str, **changes: Any) -> Any:
    with pytest.raises(CannotStart) as caught:
        start(model, **changes)
    assert caught.value.failure.next_action
    return caught.value.failure


def test_what_serving_needs_is_described(model: Path) -> None:
    phases: list[tuple[str, float]] = []
    settings = EngineSettings(model=str(model), device="cpu")
    built = build_engine(settings, progress=lambda phase, share: phases.append((phase, share)))
    description = built.description
    assert description.name == "tiny-model"
    assert description.vocab_size == TINY["vocab_size"]
    assert description.max_model_len == 128
    assert description.tokenizer.kind == "gpt2"
    assert description.cache.block_size == 16
    assert description.cache.bytes_per_block == 16 * 2 * 2 * 2 * 16 * 4
    assert any("float32 on cpu" in note for note in description.notes)
    assert [phase for phase, share in phases if share == 1.0] == ["header", "weights", "cache"]
    assert start(model, served_model_name="mine").description.name == "mine"


def test_the_cache_is_no_larger_than_all_sequences_need(model: Path) -> None:
    assert start(model).description.cache.num_blocks == 1 + 4 * 8
    assert start(model, max_model_len=20).description.cache.num_blocks == 1 + 4 * 2


def test_limits_and_fairness_reach_the_scheduler(model: Path) -> None:
    defaults = start(model).scheduler.config
    assert (defaults.max_queued_requests, defaults.max_queued_tokens) == (1024, 2**20)
    assert (defaults.priority_wait_s, defaults.max_num_batched_tokens) == (60.0, 2048)
    chosen = start(
        model,
        max_queued_requests=3,
        max_queued_tokens=77,
        priority_wait_seconds=1.5,
        max_num_batched_tokens=9,
        prefix_caching=False,
    ).scheduler.config
    assert (chosen.max_queued_requests, chosen.max_queued_tokens) == (3, 77)
    assert (chosen.priority_wait_s, chosen.max_num_batched_tokens) == (1.5, 9)
    assert not chosen.prefix_caching


def test_the_queue_of_the_flags_is_the_one_that_refuses(model: Path) -> None:
    """From the words of a command line to the refusal."""
    words = [str(model), "--device=cpu", "--max-num-seqs=1"]
    spec = RequestSpec(
        request_id="a",
        prompt_token_ids=[1] * 8,
        sampling=SamplingParams(max_tokens=1),
        arrival_s=0.0,
    )
    for flag, says in (
        ("--max-queued-requests=1", "its queue of 1 is full"),
        ("--max-queued-tokens=16", "the queue's 16 tokens"),
    ):
        scheduler = build_engine(parse_settings([*words, flag], {})).scheduler
        scheduler.add(spec)
        scheduler.add(replace(spec, request_id="b"))
        with pytest.raises(Overloaded, match=says):
            scheduler.add(replace(spec, request_id="c"))


def test_a_larger_batch_than_blocks_works(model: Path) -> None:
    built = start(model, max_num_seqs=64, kv_cache_memory=9 * 8192)
    assert built.description.cache.num_blocks == 9
    prompts = {f"p{i}": [i + 1, 2, 3] for i in range(20)}
    outcome = drive(built.scheduler, built.runner, prompts, greedy(20))
    assert all(len(tokens) == 20 for tokens in outcome.tokens.values())


def test_auto_length_is_what_the_cache_holds(model: Path) -> None:
    assert start(model, kv_cache_memory=9 * 8192).description.max_model_len == 128
    failure = refusal(model, kv_cache_memory=4 * 8192)
    assert failure.reason is Reason.INSUFFICIENT_MEMORY
    assert "--max-model-len to 48 or less, or raise --kv-cache-memory" in failure.next_action
    assert start(model, kv_cache_memory=4 * 8192, max_model_len=48).description.max_model_len == 48


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"max_model_len": 129}, Reason.INVALID_SETTING, "129.*128 tokens"),
        ({"max_model_len": 1}, Reason.INVALID_SETTING, "no room for an answer"),
        ({"max_model_len": 100, "kv_cache_memory": 3 * 8192}, Reason.INSUFFICIENT_MEMORY, "100"),
        ({"kv_cache_memory": 2**50}, Reason.INSUFFICIENT_MEMORY, "--kv-cache-memory asks for"),
    ],
)
def test_lengths_and_sizes_that_cannot_be(
    changes: dict[str, Any], reason: Reason, says: str, model: Path
) -> None:
    failure = refusal(model, **changes)
    assert failure.reason is reason
    assert re.search(says, failure.message), failure.message


def test_a_memory_limit_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "resident_memory", lambda: 100 * 2**20)
    monkeypatch.setattr(limits, "memory_limit", lambda: 150 * 2**20)
    failure = refusal(model)
    assert failure.reason is Reason.INSUFFICIENT_MEMORY
    assert "150 MiB" in failure.message
    assert "92%" in failure.message
    assert "raise the memory limit" in failure.next_action.lower()
    monkeypatch.setattr(limits, "memory_limit", lambda: 400 * 2**20)
    assert start(model).description.max_model_len == 128


def test_the_limit_that_a_refusal_names_is_enough(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "resident_memory", lambda: 100 * 2**20)
    monkeypatch.setattr(limits, "memory_limit", lambda: 150 * 2**20)
    words = refusal(model).next_action.lower().split("memory limit to ")[1].split()
    assert words[1] == "mib"
    monkeypatch.setattr(limits, "memory_limit", lambda: int(words[0]) * 2**20)
    assert start(model).description.max_model_len == 128


def test_without_a_limit_the_cache_takes_a_share_of_what_is_free(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda: None)
    monkeypatch.setattr(limits, "available_memory", lambda: 2**30)
    built = start(model, max_num_seqs=16_000, max_num_batched_tokens=16_000)
    cache = built.description.cache
    assert 0.24 * 2**30 < cache.num_blocks * cache.bytes_per_block <= 0.25 * 2**30


def test_missing_unreadable_and_unsupported_models_are_told_apart(
    tmp_path: Path, model: Path
) -> None:
    assert refusal(tmp_path / "none.gguf").reason is Reason.MODEL_NOT_FOUND
    assert refusal("package://no_such_package/x.gguf").reason is Reason.MODEL_NOT_FOUND
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"not a model" * 50)
    failure = refusal(garbage)
    assert failure.reason is Reason.MODEL_UNREADABLE
    assert "garbage.gguf" in failure.message
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-100])
    assert refusal(cut).reason is Reason.MODEL_UNREADABLE
    other = write_tiny(tmp_path / "other.gguf", architecture="gemma2").path
    assert refusal(other).reason is Reason.MODEL_NOT_SUPPORTED
    scaled = write_tiny(tmp_path / "scaled.gguf", metadata={"rope.scaling.type": "yarn"}).path
    assert "llama.rope.scaling.type" in refusal(scaled).message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there(model: Path) -> None:
    failure = refusal(model, device="cuda")
    assert failure.reason is Reason.ACCELERATOR_NOT_FOUND
    assert "--device cpu" in failure.next_action
    assert start(model, device="auto").description.notes[0].endswith("threads")


def test_a_gpu_that_runs_full_is_a_refusal_with_numbers(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(build, "KvCache", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 8 * 2**30))
    failure = refusal(model)
    assert failure.reason is Reason.INSUFFICIENT_MEMORY
    assert "of 8.00 GiB now 1.00 GiB are free" in failure.message


def test_another_process_on_the_gpu_is_not_charged_to_this_one(  # K1
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 8 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2**20)
    memory = build._device_memory("cuda")
    assert memory.limit_bytes == 8 * 2**30
    assert memory.overhead_bytes == 2**20 + build.CUDA_CONTEXT_BYTES


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs(dtype: str, model: Path) -> None:
    built = start(model, dtype=dtype)
    assert built.description.cache.bytes_per_block == 16 * 2 * 2 * 2 * 16 * 2
    outcome = drive(built.scheduler, built.runner, {"p": [1, 2, 3]}, greedy(8))
    assert len(outcome.tokens["p"]) == 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_gives_the_tokens_of_a_cpu(model: Path) -> None:
    prompts = {f"p{i}": [i + 1, 2, 3] * (i + 1) for i in range(6)}
    cpu, gpu = (start(model, device=device, dtype="float32") for device in ("cpu", "cuda"))
    expected = drive(cpu.scheduler, cpu.runner, prompts, greedy(16), arrive_every=2)
    outcome = drive(gpu.scheduler, gpu.runner, prompts, greedy(16), arrive_every=2)
    assert outcome.tokens == expected.tokens


def test_server_reserve_is_part_of_the_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "resident_memory", lambda: 5)
    assert build._device_memory("cpu").overhead_bytes == 5 + build.SERVER_BYTES
