"""Time of schedule() + update() for many decoding sequences, without a model.

    python tests/bench/scheduler.py [--sequences 256] [--steps 400] [--json]

Each sequence decodes one token a step and takes a new block every `block-size` steps. The tokens
come from a constant; making the model's answer is not timed. Lower is better.
"""

import argparse
import json
import platform
import statistics
import time

from octavo_engine.core.messages import ModelOutput, SamplingParams
from octavo_engine.core.request import RequestSpec
from octavo_engine.core.scheduler import Scheduler, SchedulerConfig


def measure(num_sequences: int, num_steps: int, block_size: int, prompt_len: int) -> list[float]:
    """Milliseconds of each step, once every prompt is computed and warm-up steps are past."""
    num_warm_up = 50
    blocks_each = -(-(prompt_len + num_steps + num_warm_up + 2) // block_size)
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=num_sequences * (blocks_each + 1) + 1,
            block_size=block_size,
            max_num_seqs=num_sequences,
            max_num_batched_tokens=num_sequences * prompt_len,
            max_model_len=1 << 20,
        )
    )
    sampling = SamplingParams(max_tokens=1 << 19, stop_token_ids=frozenset({2}))
    for i in range(num_sequences):
        # Unequal lengths, so that blocks fill at different steps as they do in service.
        prompt = [i + 10] * (prompt_len - i % block_size)
        scheduler.add(
            RequestSpec(
                request_id=f"request-{i}", prompt_token_ids=prompt, sampling=sampling, arrival_s=0.0
            )
        )
    times_ms = []
    for step in range(num_steps + num_warm_up):
        start = time.perf_counter()
        scheduled = scheduler.schedule(0.0)
        mid = time.perf_counter()
        output = ModelOutput(token_ids=[[7]] * len(scheduled.request_ids))
        resumed = time.perf_counter()
        updates = scheduler.update(scheduled, output, 0.0)
        end = time.perf_counter()
        assert len(updates) == num_sequences, "every sequence decodes in every timed step"
        if step >= num_warm_up:
            times_ms.append(((mid - start) + (end - resumed)) * 1e3)
    return times_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--prompt-len", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print raw times as JSON")
    args = parser.parse_args()
    times_ms = measure(args.sequences, args.steps, args.block_size, args.prompt_len)
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
