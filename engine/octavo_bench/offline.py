"""The engine in this process, without HTTP: how many tokens a second a batch of prompts gives.

The only module here that knows the engine, by its front door; it is imported when it is asked for.
"""

import argparse
import sys
import time
from typing import Any

from octavo_bench.errors import BenchError
from octavo_bench.prompts import calibrate, make_probes, make_prompts
from octavo_bench.workload import make_closed_jobs
from octavo_wire.settings import SettingError


def bench_offline(options: argparse.Namespace) -> tuple[dict[str, Any], str, bool]:
    """The report, its table, and whether every prompt was answered. Raises BenchError."""
    try:
        from octavo_engine.errors import CannotStart, RequestError
        from octavo_engine.llm import LLM, GenerationParams
    except ModuleNotFoundError as error:
        raise BenchError(
            f"octavo bench offline runs the engine, and {error.name!r} is not installed. Install "
            "it with: pip install 'octavo[engine]'"
        ) from None
    settings = dict(options.settings)
    count = options.requests or 100
    jobs = make_closed_jobs(count, options.prompt_tokens, options.output_tokens, seed=options.seed)
    params = GenerationParams(
        max_tokens=options.output_tokens.low, temperature=0.0, ignore_eos=True
    )
    try:
        start_s = time.perf_counter()
        llm = LLM(options.model, progress=_show_progress(), **settings)
        load_s = time.perf_counter() - start_s
        # The probes are the warm-up as well.
        probes = llm.generate(make_probes(), GenerationParams(max_tokens=8, temperature=0.0))
        prompts = make_prompts(
            [job.prompt_tokens for job in jobs],
            calibrate([probe.num_prompt_tokens for probe in probes]),
            shared_prefix_tokens=options.shared_prefix_tokens,
            seed=options.seed,
        )
        start_s = time.perf_counter()
        answers = llm.generate(prompts, params)
        took_s = time.perf_counter() - start_s
    except SettingError as error:
        raise BenchError(str(error)) from None
    except CannotStart as error:
        raise BenchError(f"{error.failure.message} {error.failure.next_action}") from None
    except RequestError as error:
        raise BenchError(error.message) from None
    good = [answer for answer in answers if answer.error is None]
    prompt_tokens = sum(answer.num_prompt_tokens for answer in good)
    output_tokens = sum(len(answer.token_ids) for answer in good)
    summary = {
        "requests": count,
        "succeeded": len(good),
        "duration_s": took_s,
        "load_s": load_s,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": sum(answer.num_cached_tokens for answer in good),
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / took_s,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / took_s,
    }
    table = (
        f"{len(good)} of {count} prompts in {took_s:.2f} s: "
        f"{summary['output_tokens_per_s']:.1f} output tokens/s, "
        f"{summary['total_tokens_per_s']:.1f} with prompts (loading took {load_s:.1f} s)\n"
        f"prompt tokens {prompt_tokens} ({summary['cached_tokens']} cached), "
        f"output tokens {output_tokens}"
    )
    errors = [answer.error for answer in answers if answer.error is not None]
    report = {
        "engine": {"model": options.model, "settings": settings},
        "summary": summary,
        "errors": {"error": errors[0]} if errors else {},
    }
    return report, table, len(good) == count


def _show_progress() -> Any:
    """Loading a model takes a while; a terminal is told how far it is."""
    if not sys.stderr.isatty():
        return lambda phase, share: None

    def show(phase: str, share: float) -> None:
        end = "\r\x1b[K" if phase == "cache" and share >= 1.0 else ""
        sys.stderr.write(f"\rloading {phase} {share:4.0%}\x1b[K{end}")
        sys.stderr.flush()

    return show
