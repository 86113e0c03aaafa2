"""Log-probabilities of a tiny model through scheduler and runner, against transformers."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo_engine.build import BuiltEngine, build_engine
from octavo_engine.core.messages import SamplingParams, TokenLogprob
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.models.decoder import Decoder
from octavo_engine.runner import model_runner
from octavo_wire.settings import EngineSettings
from support.steps import drive
from support.tiny_gguf import TINY, TinyModel, write_tiny

BLOCK = 4
NEW = 5
ASKED = SamplingParams(max_tokens=NEW, temperature=0.0, num_logprobs=3, num_prompt_logprobs=2)
PLAIN = SamplingParams(max_tokens=NEW, temperature=0.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def prompts() -> dict[str, list[int]]:
    chance = random.Random(6)
    lengths = {"one": 1, "two": 2, "block": BLOCK, "many": 37, "other": 21}
    return {
        name: [chance.randrange(TINY["vocab_size"]) for _ in range(length)]
        for name, length in lengths.items()
    }


def build(tiny: TinyModel, *, blocks: int = 100, **changes: Any) -> BuiltEngine:
    settings = EngineSettings(
        model=str(tiny.path),
        device="cpu",
        dtype="float32",
        block_size=BLOCK,
        max_num_seqs=8,
        kv_cache_memory=blocks * BLOCK * 2 * 2 * 2 * 16 * 4,
        max_model_len=60,
    )
    return build_engine(replace(settings, **changes))


def check(found: list[TokenLogprob], tiny: TinyModel, tokens: list[int], first: int) -> None:
    """`found` are of tokens[first:], given all before."""
    assert [one.token_id for one in found] == tokens[first:]
    with torch.inference_mode():
        logits = tiny.reference(torch.tensor([tokens])).logits[0].double()
    expected = logits.log_softmax(-1)
    for position, one in enumerate(found, first):
        row = expected[position - 1]
        assert one.logprob == pytest.approx(float(row[one.token_id]), abs=2e-3)
        assert abs(one.rank - 1 - int((row > row[one.token_id]).sum())) <= 1
        for token, logprob in one.top:
            assert logprob == pytest.approx(float(row[token]), abs=2e-3)
        best = row.topk(len(one.top)).values.tolist()
        assert [logprob for _, logprob in one.top] == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize("budget", [8, 64])
@pytest.mark.parametrize("ahead", [0, 1])
def test_of_prompts_in_chunks_and_of_answers(
    budget: int,
    ahead: int,
    tiny: TinyModel,
    prompts: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_runner, "PROMPT_ROWS_AT_ONCE", 5)
    rows: list[int] = []
    original = Decoder.logits

    def watched(self: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return original(self, hidden)

    monkeypatch.setattr(Decoder, "logits", watched)
    built = build(tiny, max_num_batched_tokens=budget)
    scheduler = Scheduler(replace(built.scheduler.config, async_depth=ahead))
    sampling = {name: PLAIN if name == "other" else ASKED for name in prompts}
    outcome = drive(scheduler, built.runner, prompts, sampling, ahead=ahead)
    assert max(rows) <= 5, "the logits of a whole chunk were in memory"
    for name, prompt in prompts.items():
        of_prompt, of_answer = outcome.prompt_logprobs[name], outcome.logprobs[name]
        if name == "other":
            assert of_prompt == of_answer == []
            continue
        tokens = prompt + outcome.tokens[name]
        check(of_prompt, tiny, prompt, first=1)
        check(of_answer, tiny, tokens, first=len(prompt))
        assert all(one.rank == 1 and one.top[0][0] == one.token_id for one in of_answer)
        assert all(len(one.top) == 2 for one in of_prompt)
        assert all(len(one.top) == 3 for one in of_answer)


def test_of_a_prompt_that_is_cached(tiny: TinyModel, prompts: dict[str, list[int]]) -> None:
    built = build(tiny)
    prompt = prompts["many"][:36]  # whole blocks
    for name, sampling in (("plain", PLAIN), ("asked", ASKED)):
        outcome = drive(built.scheduler, built.runner, {name: prompt}, sampling)
    check(outcome.prompt_logprobs["asked"], tiny, prompt, first=1)


def test_each_comes_once_although_sequences_are_preempted(
    tiny: TinyModel, prompts: dict[str, list[int]]
) -> None:
    names = ("many", "other", "block")
    some = {name: prompts[name] for name in names} | {"more": prompts["many"][5:]}
    params = replace(ASKED, max_tokens=20)
    built = build(tiny, blocks=21, max_num_batched_tokens=12, prefix_caching=False)
    outcome = drive(built.scheduler, built.runner, some, params)
    assert built.scheduler.stats().num_preemptions > 0
    for name, prompt in some.items():
        check(outcome.prompt_logprobs[name], tiny, prompt, first=1)
        assert [one.token_id for one in outcome.logprobs[name]] == outcome.tokens[name]
        assert len(outcome.tokens[name]) == 20


# F6, for the rows of a prompt: they fail in any chunk of it, and alone.
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("position", [3, 20, 35])
def test_a_prompt_row_of_no_numbers_fails_its_request_alone(
    position: int,
    ahead: int,
    tiny: TinyModel,
    prompts: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = build(tiny, max_num_batched_tokens=16)
    two = {"other": prompts["other"], "many": prompts["many"]}
    expected = drive(build(tiny).scheduler, build(tiny).runner, two, ASKED)
    original = Decoder.hidden_states

    def broken(self: Decoder, ids: torch.Tensor, positions: torch.Tensor, attention: Any) -> Any:
        hidden = original(self, ids, positions, attention)
        wrong = (positions == position) & (ids == prompts["many"][position])
        hidden[wrong] = float("nan")
        return hidden

    monkeypatch.setattr(Decoder, "hidden_states", broken)
    scheduler = Scheduler(replace(built.scheduler.config, async_depth=ahead))
    outcome = drive(scheduler, built.runner, two, ASKED, ahead=ahead)
    assert "not numbers" in (outcome.records["many"].error or "")
    assert outcome.tokens["many"] == []
    assert len(outcome.prompt_logprobs["many"]) < position + 1
    assert outcome.records["other"].error is None
    assert outcome.tokens["other"] == expected.tokens["other"]
    assert len(outcome.prompt_logprobs["other"]) == len(two["other"]) - 1
    assert scheduler.stats().num_used_blocks == 0
