import itertools
from collections import defaultdict

import pytest

from octavo_engine.core.messages import SamplingParams, SchedulerOutput
from octavo_engine.core.request import FinishReason, RequestSpec
from octavo_engine.serving.core_loop import summarize
from octavo_engine.serving.engine import EngineCore
from octavo_engine.serving.step_log import step_line
from support.serving import FakeEngine, make_fake_engine


def make_core(engine: FakeEngine) -> EngineCore:
    ticks = itertools.count()
    return EngineCore(engine.scheduler, engine.runner, clock=lambda: float(next(ticks)))


def make_spec(name: str, prompt: list[int], max_tokens: int) -> RequestSpec:
    sampling = SamplingParams(max_tokens=max_tokens)
    return RequestSpec(request_id=name, prompt_token_ids=prompt, sampling=sampling, arrival_s=0.0)


def run_all(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = defaultdict(list)
    for _ in range(10_000):
        if not core.has_work():
            return dict(tokens)
        for report in core.step():
            for update in report.updates:
                tokens[update.request_id] += update.new_token_ids
    raise AssertionError("the engine did not come to an end")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_depth_brings_the_same_tokens(depth: int) -> None:
    def run(async_depth: int) -> dict[str, list[int]]:
        core = make_core(make_fake_engine(async_depth=async_depth, num_blocks=20, max_num_seqs=3))
        for index in range(6):
            core.add(make_spec(f"r{index}", list(range(1, 8 + index)), 10 + index))
        return run_all(core)

    tokens = run(depth)
    assert tokens == run(0)
    assert [len(tokens[f"r{index}"]) for index in range(6)] == list(range(10, 16))


def test_a_finished_request_leaves_the_runner() -> None:
    engine = make_fake_engine()
    core = make_core(engine)
    core.add(make_spec("a", [1, 2, 3], 50))
    core.step()
    assert engine.runner.held_request_ids == {"a"}
    record = core.finish("a", FinishReason.ABORT)
    assert record is not None
    assert record.finish_reason is FinishReason.ABORT
    assert core.finish("a", FinishReason.ABORT) is None
    run_all(core)
    assert engine.runner.held_request_ids == set()
    assert core.stats().num_used_blocks == 0


def test_a_scheduler_that_stalls_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_fake_engine()
    core = make_core(engine)
    monkeypatch.setattr(engine.scheduler, "schedule", lambda now: SchedulerOutput(step=0))
    monkeypatch.setattr(engine.scheduler, "update", lambda *_: [])
    core.add(make_spec("a", [1], 1))
    with pytest.raises(RuntimeError, match="scheduled nothing"):
        run_all(core)


def test_a_step_line_tells_who_shared_the_step() -> None:
    core = make_core(make_fake_engine(num_blocks=11, block_size=4))
    core.add(make_spec("a", [1, 2, 3], 5))
    core.add(make_spec("b", [4], 5))
    (report,) = core.step()
    line = step_line(summarize(report), core.stats())
    assert line["request_ids"] == ["a", "b"]
    assert line["tokens"] == [3, 1]
    assert (line["running"], line["waiting"], line["free_blocks"]) == (2, 0, 8)
