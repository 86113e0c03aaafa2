"""However a sequence's tokens are spread over steps, its reader sees the same answer."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.core.messages import SamplingParams, TokenLogprob
from octavo_engine.core.request import FinishReason, RequestRecord, SequenceUpdate
from octavo_engine.serving.logprobs import PlacedToken
from octavo_engine.serving.text import Echo, TextAssembler, TextDelta
from octavo_engine.serving.tokenizer import Tokenizer
from support.serving import IM_END, as_tokens, make_tokenizer_spec

TOKENIZER = Tokenizer(make_tokenizer_spec())
ALPHABET = "ab한👩🏽‍🚀é"


@dataclass(frozen=True, kw_only=True)
class Case:
    prompt: list[int]
    tokens: list[int]
    ends_by_token: bool
    stops: list[str]
    min_tokens: int
    include_stop: bool
    skip_control: bool
    echo: bool


@dataclass(frozen=True)
class Told:
    text: str
    reason: FinishReason | None
    num_tokens: int
    placed: list[PlacedToken]


_WORDS = st.text(alphabet=ALPHABET, max_size=12).map(as_tokens)
_PIECES = st.one_of(_WORDS, st.lists(st.integers(0, 259), max_size=6))
CASES = st.builds(
    Case,
    prompt=_WORDS.map(lambda tokens: tokens or [97]),
    tokens=st.lists(_PIECES, min_size=1, max_size=3).map(
        lambda parts: list(itertools.chain.from_iterable(parts)) or [97]
    ),
    ends_by_token=st.booleans(),
    stops=st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=3), max_size=2),
    min_tokens=st.integers(0, 6),
    include_stop=st.booleans(),
    skip_control=st.booleans(),
    echo=st.booleans(),
)


def logprob_of(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id=token_id, logprob=-1.0 - token_id, rank=1)


def make_updates(case: Case, cuts: Sequence[int]) -> list[SequenceUpdate]:
    """Updates of the tokens cut at `cuts`, and of the prompt's log-probabilities before them."""
    tokens = [*case.tokens, IM_END] if case.ends_by_token else case.tokens
    reason = FinishReason.STOP if case.ends_by_token else FinishReason.LENGTH
    record = RequestRecord(
        request_id="r", finish_reason=reason, error=None, num_prompt_tokens=len(case.prompt),
        num_generated_tokens=len(tokens), num_cached_tokens=0, num_preemptions=0, arrival_s=0.0,
        first_scheduled_s=0.0, first_token_s=0.0, last_token_s=0.0, finished_s=0.0,
    )  # fmt: skip
    known = [logprob_of(token) for token in case.prompt[1:]]
    half = len(known) // 2
    updates = [
        SequenceUpdate(request_id="r", new_token_ids=[], num_cached_tokens=0, prompt_logprobs=part)
        for part in (known[:half], known[half:])
    ]
    bounds = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    for start, end in itertools.pairwise(bounds):
        new = tokens[start:end]
        updates.append(
            SequenceUpdate(
                request_id="r",
                new_token_ids=new,
                num_cached_tokens=0,
                record=record if end == len(tokens) else None,
                logprobs=[logprob_of(token) for token in new],
            )
        )
    return updates


def read(case: Case, cuts: Sequence[int]) -> tuple[Told, list[TextDelta]]:
    assembler = TextAssembler(
        TOKENIZER,
        SamplingParams(
            max_tokens=1000,
            min_tokens=case.min_tokens,
            num_logprobs=0,
            num_prompt_logprobs=0,
        ),
        stops=case.stops,
        include_stop=case.include_stop,
        skip_control=case.skip_control,
        echo=Echo(token_ids=case.prompt) if case.echo else None,
    )
    deltas: list[TextDelta] = []
    for update in make_updates(case, cuts):
        deltas.append(assembler.push(update))
        if deltas[-1].finish_reason is not None:
            break
    told = Told(
        "".join(delta.text for delta in deltas),
        deltas[-1].finish_reason,
        assembler.num_tokens,
        [token for delta in deltas for token in delta.tokens],
    )
    return told, deltas


@given(CASES, st.lists(st.integers(1, 60), max_size=12))
def test_any_split_tells_the_same(case: Case, cuts: list[int]) -> None:
    """Text, end, usage and log-probabilities: C1, C4, C5, E1 for every split there is."""
    whole, _ = read(case, [])
    split, deltas = read(case, cuts)
    assert split == whole
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    one_by_one, _ = read(case, range(1, 100))
    assert one_by_one == whole


@given(CASES)
def test_tokens_are_told_in_order_at_places_of_the_text(case: Case) -> None:
    told, _ = read(case, range(1, 100))
    prompt = case.prompt if case.echo else []
    sequence = [*prompt, *case.tokens, *([IM_END] if case.ends_by_token else [])]
    assert [token.token_id for token in told.placed] == sequence[: len(told.placed)]
    places = [token.text_offset for token in told.placed]
    assert places == sorted(places)
    assert all(place <= len(told.text) for place in places)


@given(st.text(alphabet=ALPHABET, max_size=20), st.lists(st.integers(1, 60), max_size=12))
def test_whole_characters_only(text: str, cuts: list[int]) -> None:
    case = Case(
        prompt=[97], tokens=as_tokens(text) or [97], ends_by_token=True, stops=[], min_tokens=0,
        include_stop=False, skip_control=True, echo=False,
    )  # fmt: skip
    told, deltas = read(case, cuts)
    assert told.text == (text or "a")
    assert not any("�" in delta.text for delta in deltas)
