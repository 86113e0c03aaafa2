"""What to ask for and when: arrivals and lengths, decided before anything is sent.

Everything here is a function of its arguments; the same seed gives the same workload.
"""

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from octavo_bench.errors import BenchError

# The columns of the Azure LLM inference trace of 2023.
TRACE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request to make. `due_s` counts from the start; None: as soon as a client is free."""

    due_s: float | None
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths in tokens, drawn uniformly from low to high, both included."""

    low: int
    high: int

    def draw(self, chance: random.Random) -> int:
        return chance.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def parse_lengths(text: str) -> Lengths:
    """Lengths from '100' or '64-256'. Raises BenchError."""
    low, separator, high = text.partition("-")
    try:
        lengths = Lengths(low=int(low), high=int(high if separator else low))
    except ValueError:
        lengths = Lengths(low=0, high=0)
    if not 1 <= lengths.low <= lengths.high:
        raise BenchError(f"{text!r} is no length: write tokens, as 100, or a range, as 64-256")
    return lengths


def make_closed_jobs(count: int, prompt: Lengths, output: Lengths, *, seed: int) -> list[Job]:
    """Jobs without a time, for clients that send the next when the last was answered."""
    chance = random.Random(seed)
    return [
        Job(due_s=None, prompt_tokens=prompt.draw(chance), output_tokens=output.draw(chance))
        for _ in range(count)
    ]


def make_poisson_jobs(
    count: int, prompt: Lengths, output: Lengths, *, rate_per_s: float, seed: int
) -> list[Job]:
    """Arrivals that do not wait for answers, with exponential gaps of 1 / rate on average.

    The lengths are those of `make_closed_jobs` with the same seed, so loads can be compared.
    """
    chance = random.Random(f"arrivals {seed}")
    due_s = 0.0
    jobs = []
    for job in make_closed_jobs(count, prompt, output, seed=seed):
        due_s += chance.expovariate(rate_per_s)
        jobs.append(replace(job, due_s=due_s))
    return jobs


def read_trace(path: Path) -> list[Job]:
    """Jobs of a trace in CSV, the first one due at 0. Raises BenchError, naming the line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return parse_trace(csv.reader(file), str(path))
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise BenchError(f"The trace {path} cannot be read: {words}") from None


def parse_trace(rows: Iterable[Sequence[str]], name: str) -> list[Job]:
    """Jobs in the order of their times, from rows with a head. Raises BenchError."""
    numbered = enumerate(rows, start=1)
    _, head = next(numbered, (1, ()))
    missing = [column for column in TRACE_COLUMNS if column not in head]
    if missing:
        raise BenchError(
            f"The trace {name} lacks the column {missing[0]}: its first line must name "
            f"{', '.join(TRACE_COLUMNS)}"
        )
    places = [head.index(column) for column in TRACE_COLUMNS]
    found: list[tuple[float, int, int]] = []
    for line, row in numbered:
        if not row:
            continue
        try:
            when, prompt, output = (row[place] for place in places)
            found.append((_seconds(when), int(prompt), int(output)))
        except (ValueError, IndexError):
            raise BenchError(
                f"Line {line} of the trace {name} is not a time and two numbers of tokens"
            ) from None
        if found[-1][1] < 1 or found[-1][2] < 1:
            raise BenchError(f"Line {line} of the trace {name} has a length below 1")
    if not found:
        raise BenchError(f"The trace {name} has no requests")
    found.sort(key=lambda row: row[0])
    start_s = found[0][0]
    return [
        Job(due_s=when_s - start_s, prompt_tokens=prompt, output_tokens=output)
        for when_s, prompt, output in found
    ]


def _seconds(text: str) -> float:
    """Seconds from a number, or from '2023-11-16 18:15:46.6805900' (seven digits, as in Azure)."""
    try:
        return float(text)
    except ValueError:
        whole, _, fraction = text.strip().partition(".")
        return datetime.fromisoformat(whole).timestamp() + float(f"0.{fraction or 0}")


def reshape(
    jobs: Sequence[Job],
    *,
    count: int | None = None,
    speed: float = 1.0,
    most_prompt_tokens: int | None = None,
    most_output_tokens: int | None = None,
) -> list[Job]:
    """The first `count` jobs, `speed` times as dense, with lengths cut to what a model can take."""
    return [
        Job(
            due_s=None if job.due_s is None else job.due_s / speed,
            prompt_tokens=min(job.prompt_tokens, most_prompt_tokens or job.prompt_tokens),
            output_tokens=min(job.output_tokens, most_output_tokens or job.output_tokens),
        )
        for job in jobs[:count]
    ]
