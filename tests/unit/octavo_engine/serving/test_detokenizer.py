import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.serving.detokenizer import Detokenizer, StopMatcher
from octavo_engine.serving.tokenizer import Tokenizer
from support.serving import IM_END, as_tokens, make_tokenizer_spec

TOKENIZER = Tokenizer(make_tokenizer_spec())


def push_all(matcher: StopMatcher, pieces: list[str]) -> list[str]:
    return [matcher.push(piece) for piece in pieces]


class TestC5PartialCharacters:
    text = "👩🏽‍🚀 한국어"

    def test_no_replacement_character_in_any_piece(self) -> None:
        detokenizer = Detokenizer(TOKENIZER)
        pieces = [detokenizer.push(token) for token in as_tokens(self.text)]
        assert "".join(pieces) == self.text
        assert not any("�" in piece for piece in pieces)

    def test_two_sequences_do_not_mix(self) -> None:
        first, second = Detokenizer(TOKENIZER), Detokenizer(TOKENIZER)
        seen = ["", ""]
        for token in as_tokens("한국"):
            seen[0] += first.push(token)
            seen[1] += second.push(token)
        assert seen == ["한국", "한국"]

    def test_a_character_that_is_cut_off_is_dropped(self) -> None:
        detokenizer = Detokenizer(TOKENIZER)
        assert "".join(detokenizer.push(token) for token in as_tokens("a한")[:-1]) == "a"


class TestC6BytesThatAreNoText:
    def test_they_become_replacement_characters_and_the_stream_goes_on(self) -> None:
        detokenizer = Detokenizer(TOKENIZER)
        tokens = [0xFF, *as_tokens("a"), 0xED, 0x95, *as_tokens("b한")]
        assert "".join(map(detokenizer.push, tokens)) == "�a�b한"

    @given(st.binary())
    def test_pieces_make_the_text_of_the_whole_but_for_an_unfinished_end(self, data: bytes) -> None:
        detokenizer = Detokenizer(TOKENIZER)
        text = "".join(detokenizer.push(byte) for byte in data)
        whole = TOKENIZER.decode(list(data))
        assert whole.startswith(text)
        # Up to three bytes that could begin a character are held back, then dropped.
        assert whole[len(text) :] in ("", "�", "��", "���")


class TestC8ControlTokens:
    def test_hidden_by_default(self) -> None:
        detokenizer = Detokenizer(TOKENIZER)
        assert "".join(map(detokenizer.push, [ord("a"), IM_END, ord("b")])) == "ab"

    def test_shown_on_request(self) -> None:
        detokenizer = Detokenizer(TOKENIZER, skip_control=False)
        assert "".join(map(detokenizer.push, [ord("a"), IM_END])) == "a<|im_end|>"


class TestC1StopInPieces:
    def test_no_part_of_the_stop_is_shown(self) -> None:
        matcher = StopMatcher(["DEFGHIJ"])
        assert push_all(matcher, list("ABC DEFGHIJ K")) == [*"ABC ", *[""] * 9]
        assert matcher.matched == "DEFGHIJ"

    def test_the_stop_is_shown_on_request(self) -> None:
        matcher = StopMatcher(["END"], include_stop=True)
        assert "".join(push_all(matcher, ["aE", "N", "Db"])) == "aEND"

    def test_what_was_held_back_is_flushed_when_no_stop_comes(self) -> None:
        matcher = StopMatcher(["STOP"])
        assert "".join(push_all(matcher, ["a", "ST"])) == "a"
        assert matcher.flush() == "ST"


class TestC2HoldBackOnlyWhatMayBeAStop:
    def test_ordinary_text_is_never_delayed(self) -> None:
        matcher = StopMatcher(["zzzzzzzzzzzzzzzz"])
        assert push_all(matcher, ["some ", "text ", "z", "zz", "a"]) == [
            "some ",
            "text ",
            "",
            "",
            "zzza",
        ]


@pytest.mark.parametrize(
    ("stops", "text", "shown", "matched"),
    [
        (["ab", "b"], "xaby", "x", "ab"),
        (["b", "abc"], "xabc", "xa", "b"),
        (["aab"], "aaab", "a", "aab"),
        (["\n\n"], "a\n\n", "a", "\n\n"),
        (["é"], "cafe é", "cafe ", "é"),
    ],
)
def test_the_stop_that_completes_first_ends_the_text(
    stops: list[str], text: str, shown: str, matched: str
) -> None:
    for pieces in ([text], list(text)):
        matcher = StopMatcher(stops)
        assert "".join(push_all(matcher, pieces)) == shown
        assert matcher.matched == matched


@given(
    text=st.text(alphabet="abc", max_size=40),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 40)),
)
def test_pieces_make_no_difference(text: str, stops: list[str], cuts: list[int]) -> None:
    whole, pieced = StopMatcher(stops), StopMatcher(stops)
    expected = whole.push(text) + whole.flush()
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    shown = "".join(pieced.push(text[a:b]) for a, b in itertools.pairwise(bounds))
    assert shown + pieced.flush() == expected
    assert pieced.matched == whole.matched
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert (whole.matched is None) == (not ends)
    if ends:
        assert expected == text[: min(ends) - len(whole.matched or "")]
