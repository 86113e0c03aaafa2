"""Time of schedule() + update() for many decoding sequences, without a model.

    python tests/bench/scheduler.py [--sequences 256] [--steps 400] [--json]
    python tests/bench/scheduler.py --table [--json]

Each sequence decodes one token a step and takes a new block every `block-size` steps. The tokens
come from a constant; making the model's answer is not timed. Times are processor time, so that
other processes' turns do not count. Lower is better.

--table varies one thing at a time: sequences in a step (the time must follow), size of the pool,
length of the sequences, and a queue whose head does not fit (the time must stay).
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass

from octavo_engine.core.messages import ModelOutput, SamplingParams
from octavo_engine.core.request import RequestSpec
from octavo_engine.core.scheduler import Scheduler, SchedulerConfig

_WARM_UP_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Case:
    """num_spare_blocks: free blocks beyond what the sequences take.

    head_tokens: prompt of a request that waits for more blocks than are free; 0: nobody waits.
    """

    num_sequences: int = 256
    block_size: int = 16
    prompt_len: int = 100
    num_spare_blocks: int = 0
    head_tokens: int = 0


def make_scheduler(case: Case, num_steps: int) -> Scheduler:
    num_tokens = case.prompt_len + num_steps + _WARM_UP_STEPS + 2
    num_blocks = case.num_sequences * (-(-num_tokens // case.block_size) + 1) + 1
    num_blocks += case.num_spare_blocks
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=max(num_blocks, case.head_tokens // case.block_size + 2),
            block_size=case.block_size,
            max_num_seqs=case.num_sequences + 1,
            max_num_batched_tokens=case.num_sequences * case.prompt_len + 1,
            max_model_len=1 << 24,
            max_queued_tokens=1 << 40,
        )
    )
    sampling = SamplingParams(max_tokens=1 << 23, stop_token_ids=frozenset({2}))
    for i in range(case.num_sequences):
        # Unequal lengths, so that blocks fill at different steps as they do in service.
        prompt = [i + 10] * (case.prompt_len - i % case.block_size)
        scheduler.add(
            RequestSpec(
                request_id=f"request-{i}", prompt_token_ids=prompt, sampling=sampling, arrival_s=0.0
            )
        )
    if case.head_tokens:
        scheduler.add(
            RequestSpec(
                request_id="head",
                prompt_token_ids=[5] * case.head_tokens,
                sampling=sampling,
                arrival_s=1.0,
            )
        )
    return scheduler


def measure(case: Case, num_steps: int) -> list[float]:
    """Milliseconds of each step, once every prompt is computed and warm-up steps are past."""
    scheduler = make_scheduler(case, num_steps)
    times_ms = []
    for step in range(num_steps + _WARM_UP_STEPS):
        start = time.process_time()
        scheduled = scheduler.schedule(0.0)
        mid = time.process_time()
        output = ModelOutput(token_ids=[[7]] * len(scheduled.request_ids))
        resumed = time.process_time()
        updates = scheduler.update(scheduled, output, 0.0)
        end = time.process_time()
        if step >= _WARM_UP_STEPS:
            assert len(updates) == case.num_sequences, "every sequence decodes in every timed step"
            assert scheduler.stats().num_waiting == bool(case.head_tokens), "its head still waits"
            times_ms.append(((mid - start) + (end - resumed)) * 1e3)
    return times_ms


def make_table() -> dict[str, list[Case]]:
    return {
        "sequences in a step": [Case(num_sequences=n) for n in (64, 128, 256, 512, 1024)],
        "free blocks in the pool": [Case(num_spare_blocks=n) for n in (0, 10_000, 100_000)],
        "tokens of each prompt": [Case(prompt_len=n) for n in (100, 1000, 8000)],
        "tokens of a blocked head": [Case(head_tokens=n) for n in (0, 200_000, 800_000)],
    }


def run_table(num_steps: int, as_json: bool) -> None:
    """Runs of a group take turns, so that a change of the machine's mood meets all alike."""
    rows = []
    for group, cases in make_table().items():
        times: list[list[float]] = [[] for _ in cases]
        for _ in range(3):
            for found, case in zip(times, cases, strict=True):
                found += measure(case, num_steps // 3)
        for case, found in zip(cases, times, strict=True):
            cuts = statistics.quantiles(found, n=100)
            rows.append(
                {
                    "group": group,
                    **asdict(case),
                    "p5_ms": cuts[4],
                    "median_ms": statistics.median(found),
                    "p95_ms": cuts[94],
                }
            )
    if as_json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        print(json.dumps({**machine, "steps": num_steps, "rows": rows}))
        return
    columns = {
        "sequences in a step": "num_sequences",
        "free blocks in the pool": "num_spare_blocks",
        "tokens of each prompt": "prompt_len",
        "tokens of a blocked head": "head_tokens",
    }
    print("| varied | value | 5 % ms | median ms | 95 % ms | median µs per sequence |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows:
        per_sequence = row["median_ms"] * 1e3 / row["num_sequences"]
        print(
            f"| {row['group']} | {row[columns[row['group']]]} | {row['p5_ms']:.3f} "
            f"| {row['median_ms']:.3f} | {row['p95_ms']:.3f} | {per_sequence:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--prompt-len", type=int, default=100)
    parser.add_argument("--table", action="store_true", help="show what the time depends on")
    parser.add_argument("--json", action="store_true", help="print raw times as JSON")
    args = parser.parse_args()
    if args.table:
        run_table(args.steps, args.json)
        return
    case = Case(
        num_sequences=args.sequences, block_size=args.block_size, prompt_len=args.prompt_len
    )
    times_ms = measure(case, args.steps)
    cuts = statistics.quantiles(times_ms, n=100)
    figures = {
        "sequences": args.sequences,
        "steps": args.steps,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "median_ms": statistics.median(times_ms),
        "p5_ms": cuts[4],
        "p95_ms": cuts[94],
        "max_ms": max(times_ms),
    }
    if args.json:
        print(json.dumps({**figures, "times_ms": times_ms}))
        return
    print(
        f"schedule + update of {args.sequences} decoding sequences, {args.steps} steps: "
        f"median {figures['median_ms']:.3f} ms, 5 % to 95 % {figures['p5_ms']:.3f} to "
        f"{figures['p95_ms']:.3f} ms, slowest {figures['max_ms']:.3f} ms "
        f"(Python {figures['python']}, {figures['machine']})"
    )


if __name__ == "__main__":
    main()
