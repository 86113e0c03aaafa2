from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason, RequestRecord, SequenceUpdate
from octavo_engine.serving.text import TextAssembler, TextDelta
from octavo_engine.serving.tokenizer import Tokenizer
from support.serving import IM_END, as_tokens, make_tokenizer_spec

TOKENIZER = Tokenizer(make_tokenizer_spec())


def make_assembler(*, stops: list[str], min_tokens: int = 0) -> TextAssembler:
    sampling = SamplingParams(max_tokens=100, min_tokens=min_tokens)
    return TextAssembler(TOKENIZER, sampling, stops=stops)


def make_update(tokens: list[int], reason: FinishReason | None = None) -> SequenceUpdate:
    record = reason and RequestRecord(
        request_id="r", finish_reason=reason, error=None, num_prompt_tokens=1,
        num_generated_tokens=len(tokens), num_cached_tokens=0, num_preemptions=0, arrival_s=0.0,
        first_scheduled_s=0.0, first_token_s=0.0, last_token_s=0.0, finished_s=0.0,
    )  # fmt: skip
    return SequenceUpdate(request_id="r", new_token_ids=tokens, num_cached_tokens=3, record=record)


def feed(assembler: TextAssembler, text: str) -> list[TextDelta]:
    deltas = []
    for token in as_tokens(text):
        deltas.append(assembler.push(make_update([token])))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


class TestC4MinTokens:
    def test_a_stop_inside_the_first_tokens_is_ignored(self) -> None:
        deltas = feed(make_assembler(stops=["b"], min_tokens=3), "abcdeb")
        assert "".join(delta.text for delta in deltas) == "abcde"
        assert deltas[-1].finish_reason is FinishReason.STOP

    def test_a_stop_across_the_boundary_is_ignored(self) -> None:
        deltas = feed(make_assembler(stops=["cd"], min_tokens=3), "abcdecd")
        assert "".join(delta.text for delta in deltas) == "abcde"

    def test_nothing_is_held_back_before_the_boundary(self) -> None:
        deltas = feed(make_assembler(stops=["abz"], min_tokens=2), "ab")
        assert [delta.text for delta in deltas] == ["a", "b"]


def test_the_token_that_ended_the_text_is_counted_and_not_shown() -> None:
    assembler = make_assembler(stops=[])
    delta = assembler.push(make_update([*as_tokens("ab"), IM_END], FinishReason.STOP))
    assert delta == TextDelta(text="ab", finish_reason=FinishReason.STOP)
    assert assembler.num_tokens == 3
    assert assembler.num_cached_tokens == 3


def test_a_stop_token_that_is_ordinary_text_is_not_shown_either() -> None:
    delta = make_assembler(stops=[]).push(make_update(as_tokens("ab"), FinishReason.STOP))
    assert delta.text == "a"


def test_at_the_length_limit_all_text_is_shown_and_the_start_of_a_stop_too() -> None:
    delta = make_assembler(stops=["bc"]).push(make_update(as_tokens("ab"), FinishReason.LENGTH))
    assert delta == TextDelta(text="ab", finish_reason=FinishReason.LENGTH)


def test_tokens_behind_a_stop_string_are_not_counted() -> None:
    assembler = make_assembler(stops=["b"])
    delta = assembler.push(make_update(as_tokens("abcd")))
    assert delta.finish_reason is FinishReason.STOP
    assert assembler.num_tokens == 2
