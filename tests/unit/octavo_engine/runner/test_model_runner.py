"""Scheduler and runner together on a tiny model, against transformers."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo_engine.build import BuiltEngine, build_engine
from octavo_engine.core.messages import ModelOutput, SamplingParams, SchedulerOutput
from octavo_engine.core.scheduler import Scheduler
from octavo_wire.settings import EngineSettings
from support.steps import Outcome, drive, greedy
from support.tiny_gguf import TINY, TinyModel, write_tiny

BLOCK = 4
NEW = 12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def prompts() -> dict[str, list[int]]:
    """Lengths around the block size; four share a prefix, one of them is whole blocks of it."""
    chance = random.Random(5)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(TINY["vocab_size"]) for _ in range(count)]

    shared = tokens(5 * BLOCK)
    lengths = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 29, 60)
    several = [tokens(length) for length in lengths]
    several += [shared, shared + tokens(1), shared + tokens(9), shared[:-2] + tokens(6)]
    return {f"p{index}": ids for index, ids in enumerate(several)}


@pytest.fixture(scope="module")
def expected(tiny: TinyModel, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    found = {}
    for name, prompt in prompts.items():
        ids = list(prompt)
        for _ in range(NEW):
            with torch.inference_mode():
                ids.append(int(tiny.reference(torch.tensor([ids])).logits[0, -1].argmax()))
        found[name] = ids[len(prompt) :]
    assert len({tuple(ids) for ids in found.values()}) > 8, "a model that always says the same"
    return found


def build(tiny: TinyModel, *, blocks: int = 200, **changes: Any) -> BuiltEngine:
    settings = EngineSettings(
        model=str(tiny.path),
        device="cpu",
        block_size=BLOCK,
        max_num_seqs=8,
        kv_cache_memory=blocks * BLOCK * 2 * 2 * 2 * 16 * 4,
        max_model_len=80,
    )
    built = build_engine(replace(settings, **changes))
    assert built.description.cache.num_blocks <= blocks
    return built


def run(built: BuiltEngine, prompts: dict[str, list[int]], **changes: Any) -> Outcome:
    return drive(built.scheduler, built.runner, prompts, greedy(NEW), **changes)


def test_alone(tiny: TinyModel, prompts: Any, expected: Any) -> None:
    outcome = run(build(tiny, max_num_seqs=1, prefix_caching=False), prompts)
    assert outcome.tokens == expected


@pytest.mark.parametrize("budget", [8, 9, 64])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_in_a_batch_with_prompts_in_chunks(
    budget: int, prefix_caching: bool, tiny: TinyModel, prompts: Any, expected: Any
) -> None:
    built = build(tiny, max_num_batched_tokens=budget, prefix_caching=prefix_caching)
    outcome = run(built, prompts, arrive_every=2)
    assert outcome.tokens == expected
    assert max(len(step.request_ids) for step in outcome.steps) > 4
    assert (built.scheduler.stats().prefix_hit_tokens > 0) == prefix_caching


def test_prefix_hits_and_whole_hits(tiny: TinyModel, prompts: Any, expected: Any) -> None:
    built = build(tiny)
    assert run(built, prompts).tokens == expected
    again = run(built, {f"{name}-again": ids for name, ids in prompts.items()})
    assert again.tokens == {f"{name}-again": ids for name, ids in expected.items()}
    assert any(step.attend_only for step in again.steps)
    records = again.records
    assert records["p8-again"].num_cached_tokens >= len(prompts["p8"]) - 1


def test_in_a_pool_that_preempts(tiny: TinyModel, prompts: Any, expected: Any) -> None:
    built = build(tiny, blocks=24)
    outcome = run(built, prompts)
    assert outcome.tokens == expected
    assert built.scheduler.stats().num_preemptions > 0


def one_step_ahead(built: BuiltEngine) -> Scheduler:
    return Scheduler(replace(built.scheduler.config, async_depth=1))


@pytest.mark.parametrize("blocks", [24, 200])
def test_a_step_ahead_of_its_results(
    blocks: int, tiny: TinyModel, prompts: Any, expected: Any
) -> None:
    built = build(tiny, blocks=blocks, max_num_batched_tokens=16)
    scheduler = one_step_ahead(built)
    outcome = drive(scheduler, built.runner, prompts, greedy(NEW), arrive_every=1, ahead=1)
    assert outcome.tokens == expected
    assert (scheduler.stats().num_preemptions > 0) == (blocks == 24)


def test_stop_tokens_seen_a_step_late_end_a_sequence_where_they_stand(
    tiny: TinyModel, prompts: Any, expected: Any
) -> None:
    built = build(tiny)
    stops = {name: frozenset({tokens[5]}) for name, tokens in expected.items()}
    sampling = {
        name: SamplingParams(max_tokens=NEW, temperature=0.0, stop_token_ids=stops[name])
        for name in prompts
    }
    outcome = drive(one_step_ahead(built), built.runner, prompts, sampling, ahead=1)
    for name, tokens in expected.items():
        assert outcome.tokens[name] == tokens[: tokens.index(tokens[5]) + 1]


def test_a_seeded_sequence_is_the_same_in_any_company(tiny: TinyModel, prompts: Any) -> None:  # F1
    seeded = SamplingParams(max_tokens=NEW, temperature=1.0, seed=42)
    other = SamplingParams(max_tokens=NEW, temperature=1.3, top_p=0.9, presence_penalty=0.5)
    chosen = {name: prompts[name] for name in ("p4", "p6", "p8", "p10")}
    alone = drive(*parts(build(tiny)), {"p6": chosen["p6"]}, seeded).tokens["p6"]
    sampling = {name: seeded if name == "p6" else other for name in chosen}
    mixed = drive(*parts(build(tiny)), chosen, sampling, arrive_every=1)
    assert mixed.tokens["p6"] == alone
    small = build(tiny, blocks=21)
    preempted = drive(*parts(small), chosen, dict.fromkeys(chosen, seeded))
    assert preempted.tokens["p6"] == alone
    assert small.scheduler.stats().num_preemptions > 0


def parts(built: BuiltEngine) -> tuple[Any, Any]:
    return built.scheduler, built.runner


def test_an_unseeded_sequence_differs_from_run_to_run(tiny: TinyModel, prompts: Any) -> None:
    free = SamplingParams(max_tokens=30, temperature=2.0)
    one, two = (
        drive(*parts(build(tiny)), {"p6": prompts["p6"]}, free).tokens["p6"] for _ in range(2)
    )
    assert one != two


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_model_that_gives_no_numbers_fails_the_request_and_not_the_engine(  # F6
    ahead: int, tiny: TinyModel, prompts: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(tiny)
    from octavo_engine.models.decoder import Decoder

    original = Decoder.logits

    def broken_for_the_first_row(self: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        logits = original(self, hidden)
        logits[0] = float("nan")
        return logits

    monkeypatch.setattr(Decoder, "logits", broken_for_the_first_row)
    two = {name: prompts[name] for name in ("p4", "p6")}
    scheduled: list[ModelOutput] = []

    class Watched:
        def dispatch(self, step: SchedulerOutput) -> Any:
            pending = built.runner.dispatch(step)
            scheduled.append(pending.result())
            monkeypatch.setattr(Decoder, "logits", original)
            return pending

    scheduler = one_step_ahead(built) if ahead else built.scheduler
    outcome = drive(scheduler, Watched(), two, greedy(NEW), ahead=ahead)
    assert list(scheduled[0].failed) == ["p4"]
    assert outcome.records["p4"].error is not None
    assert outcome.tokens["p6"] == expected["p6"]
    assert scheduler.stats().num_used_blocks == 0


def test_a_step_without_rows_still_drops(tiny: TinyModel) -> None:
    runner = build(tiny).runner
    output = runner.dispatch(SchedulerOutput(step=0, dropped=["gone"])).result()
    assert list(output.token_ids) == []
