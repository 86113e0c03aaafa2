import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from octavo_engine.errors import CannotStart
from octavo_engine.serving.pretokenizers import PRE_TOKENIZERS
from octavo_engine.serving.tokenizer import Segment, Tokenizer
from octavo_wire.failures import Reason
from support.serving import END_OF_TEXT, IM_END, IM_START, make_tokenizer_spec

TOKENIZER = Tokenizer(make_tokenizer_spec())
HE = 259


def test_merges_apply() -> None:
    assert TOKENIZER.encode_text("hehx") == [HE, ord("h"), ord("x")]


def test_control_tokens_in_plain_text_are_characters() -> None:
    ids = TOKENIZER.encode_text("a<|im_end|>b")
    assert not TOKENIZER.control_ids & set(ids)
    assert TOKENIZER.decode(ids) == "a<|im_end|>b"


def test_control_tokens_in_markup_are_tokens() -> None:
    assert TOKENIZER.encode_markup("a<|im_end|>b") == [ord("a"), IM_END, ord("b")]


def test_segments_keep_markup_and_text_apart() -> None:
    segments = [
        Segment(text="<|im_start|>", markup=True),
        Segment(text="<|im_start|>", markup=False),
    ]
    ids = TOKENIZER.encode_segments(segments)
    assert ids[0] == IM_START
    assert IM_START not in ids[1:]


class TestG1DoubleBos:
    spec = make_tokenizer_spec(add_bos_token=True)

    def test_a_raw_prompt_gets_one(self) -> None:
        assert Tokenizer(self.spec).encode_prompt("a") == [END_OF_TEXT, ord("a")]

    def test_a_raw_prompt_that_begins_with_it_gets_no_second(self) -> None:
        assert Tokenizer(self.spec).encode_prompt("<|endoftext|>a") == [END_OF_TEXT, ord("a")]

    def test_a_chat_gets_what_its_template_writes(self) -> None:
        segments = [Segment(text="<|endoftext|>", markup=True), Segment(text="a", markup=False)]
        assert Tokenizer(self.spec).encode_segments(segments) == [END_OF_TEXT, ord("a")]

    def test_none_where_the_model_wants_none(self) -> None:
        assert TOKENIZER.encode_prompt("a") == [ord("a")]


class TestD4EmptyPrompt:
    def test_is_the_bos_token_alone(self) -> None:
        assert TOKENIZER.encode_prompt("") == [END_OF_TEXT]

    def test_is_nothing_without_a_bos_token(self) -> None:
        assert Tokenizer(make_tokenizer_spec(bos_token_id=None)).encode_prompt("") == []


def test_user_defined_tokens_are_tokens_everywhere() -> None:
    tokenizer = Tokenizer(make_tokenizer_spec(extra_tokens=[("<tool>", 4)]))
    assert tokenizer.encode_text("a<tool>") == [ord("a"), 260]
    assert tokenizer.decode([260]) == "<tool>"


@given(st.text())
def test_text_survives_encoding_and_decoding(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode_text(text)) == text


@given(st.text(alphabet=st.sampled_from("he <|im_end|>xé한"), max_size=60))
def test_fewest_tokens_never_exceeds_the_tokens(text: str) -> None:
    assert TOKENIZER.fewest_tokens(text) <= len(TOKENIZER.encode_markup(text))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "llama"}, Reason.MODEL_NOT_SUPPORTED),
        ({"pre_tokenizer": "chameleon"}, Reason.MODEL_NOT_SUPPORTED),
        ({"merges": []}, Reason.MODEL_UNREADABLE),
        ({"merges": ["nospace"]}, Reason.MODEL_UNREADABLE),
        ({"token_types": [1]}, Reason.MODEL_UNREADABLE),
    ],
)
def test_a_tokenizer_that_cannot_work_is_refused(change: dict[str, object], reason: Reason) -> None:
    with pytest.raises(CannotStart) as caught:
        Tokenizer(dataclasses.replace(make_tokenizer_spec(), **change))
    assert caught.value.failure.reason is reason
    assert caught.value.failure.next_action


@pytest.mark.parametrize(
    ("merge", "missing"), [("ζ e", "ζ"), ("h ζ", "ζ"), ("h x", "hx")], ids=["left", "right", "both"]
)
def test_a_merge_outside_the_vocabulary_is_named(merge: str, missing: str) -> None:
    spec = make_tokenizer_spec()
    with pytest.raises(CannotStart) as caught:
        Tokenizer(dataclasses.replace(spec, merges=[*spec.merges, merge]))
    failure = caught.value.failure
    assert failure.reason is Reason.MODEL_UNREADABLE
    assert f"merge {merge!r} needs the token {missing!r}" in failure.message
    assert "Convert the model" in failure.next_action


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "don't  stop 1234!", ["don", "'t", " ", " stop", " 1234", "!"]),
        ("smollm", "in  2024 a", ["in", "  ", "2", "0", "2", "4", " a"]),
        ("llama-bpe", "I'LL pay 12345\n\n x", ["I", "'LL", " pay", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "v12 (ok)\n", ["v", "1", "2", " (", "ok", ")\n"]),
        ("default", "a, 1234", ["a", ",", " ", "123", "4"]),
    ],
)
def test_each_family_cuts_as_it_is_defined(name: str, text: str, pieces: list[str]) -> None:
    cut = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(e), behavior="isolated") for e in PRE_TOKENIZERS[name]]
    )
    assert [piece for piece, _ in cut.pre_tokenize_str(text)] == pieces
