"""Prompts of a wanted length, for tokenizers that differ."""

from collections.abc import Callable

import pytest

from octavo_bench.prompts import calibrate, make_probes, make_prompts

TOKENIZERS: dict[str, Callable[[str], int]] = {
    "a token a word": lambda text: len(text.split()),
    "a token a word and a BOS": lambda text: len(text.split()) + 1,
    "bytes": len,
    "a chat around it": lambda text: len(text.split()) + 31,
}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("wanted", [64, 100, 1000])
def test_lengths_come_out_as_wanted(name: str, wanted: int) -> None:
    count = TOKENIZERS[name]
    calibration = calibrate([count(probe) for probe in make_probes()])
    prompts = make_prompts([wanted] * 20, calibration, shared_prefix_tokens=0, seed=0)
    lengths = [count(prompt) for prompt in prompts]
    exact = name != "bytes"  # words of several lengths scatter there
    assert sum(lengths) / len(lengths) == pytest.approx(wanted, abs=1 if exact else 0.1 * wanted)


def test_prompts_differ_at_once_and_are_those_of_the_seed() -> None:
    calibration = calibrate([16, 272])
    prompts = make_prompts([50] * 8, calibration, shared_prefix_tokens=0, seed=1)
    assert len({prompt[:30] for prompt in prompts}) == 8
    assert prompts == make_prompts([50] * 8, calibration, shared_prefix_tokens=0, seed=1)
    assert prompts != make_prompts([50] * 8, calibration, shared_prefix_tokens=0, seed=2)


def test_a_shared_prefix_is_shared_with_the_warm_up_as_well() -> None:
    calibration = calibrate([16, 272])
    heads = {
        " ".join(prompt.split()[:40])
        for seed in (1, 2)
        for prompt in make_prompts([50, 60], calibration, shared_prefix_tokens=40, seed=seed)
    }
    assert len(heads) == 1
    (short, long) = make_prompts([50, 60], calibration, shared_prefix_tokens=40, seed=1)
    assert (len(short.split()), len(long.split())) == (50, 60)
    assert short.split()[40:] != long.split()[40:50]


def test_no_prompt_is_empty() -> None:
    calibration = calibrate([16 + 500, 272 + 500])  # a template longer than what is wanted
    assert make_prompts([1], calibration, shared_prefix_tokens=0, seed=0) != [""]
