from pathlib import Path

import pytest

from octavo_engine.core.request import FinishReason
from octavo_engine.errors import ContextTooLong, InvalidRequest
from octavo_engine.llm import LLM, GenerationParams
from octavo_wire.settings import SettingError
from support.serving import as_tokens, make_fake_engine
from support.tiny_gguf import write_tiny

GREEDY = GenerationParams(max_tokens=8, temperature=0.0)


def make_llm(**options: object) -> LLM:
    return LLM.over(make_fake_engine(**options))  # type: ignore[arg-type]


def test_text_ids_and_messages_in_one_batch() -> None:
    engine = make_fake_engine(scripts={"greet": as_tokens("Hello 한국!")})
    prompts = ["ab", [97, 98], [{"role": "user", "content": "greet"}]]
    answers = LLM.over(engine).generate(prompts, GenerationParams(max_tokens=40, temperature=0.0))
    assert answers[0] == answers[1]
    assert [len(answers[0].token_ids), answers[0].num_prompt_tokens] == [40, 2]
    assert (answers[2].text, answers[2].finish_reason) == ("Hello 한국!", FinishReason.STOP)
    assert engine.runner.steps[0].num_scheduled_tokens[:2] == [2, 2]
    assert len(engine.runner.steps[0].request_ids) == 3, "they run side by side"


def test_more_prompts_than_the_queue_holds() -> None:
    llm = make_llm(max_num_seqs=2, max_queued_requests=1)
    answers = llm.generate([[1 + i] for i in range(20)], GREEDY)
    assert [len(answer.token_ids) for answer in answers] == [8] * 20


def test_a_stop_string_ends_the_answer() -> None:
    llm = make_llm(scripts={"count": as_tokens("one two three four")})
    message = [{"role": "user", "content": "count"}]
    (answer,) = llm.generate([message], GenerationParams(stop=["three"]))
    assert (answer.text, answer.finish_reason) == ("one two ", FinishReason.STOP)
    assert llm.generate([[5]], GREEDY)[0].finish_reason is FinishReason.LENGTH


def test_a_stream_that_is_left_frees_its_blocks() -> None:
    engine = make_fake_engine()
    llm = LLM.over(engine)
    stream = llm.stream([[1], [2]], GenerationParams(max_tokens=100))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert engine.scheduler.stats().num_used_blocks == 0
    assert engine.runner.held_request_ids == set()


def test_max_tokens_is_what_fits() -> None:
    (answer,) = make_llm(max_model_len=32).generate([[1, 2]])
    assert len(answer.token_ids) == 30


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        ([[]], {}, "empty"),
        ([[999_999]], {}, "999999"),
        ([[{"role": "user"}]], {}, "messages.0"),
        ([[1.5]], {}, "messages"),
        ([[object()]], {}, "a list of token ids"),
        (["x"], {"temperature": 9.0}, "temperature"),
        (["x"], {"max_tokens": 0}, "max_tokens"),
        (["x"], {"top_p": 2.0}, "top_p"),
    ],
)
def test_mistakes_are_named_before_anything_runs(prompt: list, params: dict, says: str) -> None:
    llm = make_llm()
    with pytest.raises(InvalidRequest, match=r".+") as caught:
        llm.generate([[1], *prompt], GenerationParams(**params))
    assert says in str(caught.value)
    assert not llm._core.has_work()


def test_a_prompt_that_can_never_fit() -> None:
    with pytest.raises(ContextTooLong):
        make_llm(max_model_len=32).generate([[1] * 40])


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"port": 80}, "--port"), ({"no_such": 1}, "no_such"), ({"max_num_seqs": 0}, "max-num-seqs")],
)
def test_settings_are_checked(settings: dict, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        LLM("tiny.gguf", **settings)


def test_the_tiny_model(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.gguf", readable=True)
    llm = LLM(str(tmp_path / "tiny.gguf"), max_num_seqs=2, kv_cache_memory=2**20)
    together = llm.generate([[3, 4, 5], [6, 7], [8]], GREEDY)
    alone = [llm.generate([prompt], GREEDY)[0] for prompt in ([3, 4, 5], [6, 7], [8])]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert all(answer.text for answer in together)
