"""Prompts of a wanted length in tokens, from words that most tokenizers keep whole.

How many tokens a word takes is asked of the server; how many a prompt took is what its usage says.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_LIST: Final = """
river stone morning window garden paper letter market bridge summer winter forest valley engine
signal number answer question teacher student doctor farmer village island harbor mountain weather
silver golden yellow purple narrow simple common public private modern ancient quiet gentle heavy
light early later never always often under over after before between around through across follow
gather carry listen wonder travel remember consider build write read learn teach grow bring hold
keep leave find make take give open close house street table chair bottle basket picture music
story dream shadow circle square corner center border surface water fire earth wind cloud rain snow
storm season
"""
WORDS: Final = _LIST.split()
# Two probes give a line: tokens = overhead + slope * words.
_PROBE_WORDS: Final = (16, 272)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """tokens = overhead + tokens_per_word · words, on the average of WORDS."""

    tokens_per_word: float
    overhead_tokens: float

    def words_for(self, tokens: int) -> int:
        """At least one word, since no server takes an empty prompt."""
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_per_word))


def make_probes() -> list[str]:
    """Texts whose lengths in tokens are to be asked for."""
    chance = random.Random("probe")
    return [_words(count, chance) for count in _PROBE_WORDS]


def calibrate(probe_tokens: Sequence[int]) -> Calibration:
    """From the lengths of `make_probes()`, in their order."""
    (few, many), (short, long) = _PROBE_WORDS, probe_tokens
    slope = max((long - short) / (many - few), 1 / 16)
    return Calibration(tokens_per_word=slope, overhead_tokens=short - slope * few)


def make_prompts(
    lengths: Sequence[int], calibration: Calibration, *, shared_prefix_tokens: int, seed: int
) -> list[str]:
    """A prompt for each length; all begin alike for `shared_prefix_tokens`, then differ.

    The prefix depends on no seed, so that a warm-up brings it into a cache, as a system prompt is.
    A prompt has a word of its own at least.
    """
    chance = random.Random(f"prompts {seed}")
    prefix_words = round(shared_prefix_tokens / calibration.tokens_per_word)
    prefix = _words(prefix_words, random.Random("prefix"))
    prompts = []
    for length in lengths:
        own = _words(max(1, calibration.words_for(length) - prefix_words), chance)
        prompts.append(f"{prefix} {own}" if prefix else own)
    return prompts


def _words(count: int, chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=count))
