"""Names of the engine's metric series: vLLM's, so that existing dashboards and scalers work.

Every name is exported from process start. Counters are given as exposed, with `_total`.
"""

from typing import Final

NUM_REQUESTS_RUNNING: Final = "vllm:num_requests_running"
NUM_REQUESTS_WAITING: Final = "vllm:num_requests_waiting"
KV_CACHE_USAGE: Final = "vllm:kv_cache_usage_perc"  # 0..1, the null block excluded
CACHE_CONFIG_INFO: Final = "vllm:cache_config_info"

PREFIX_CACHE_QUERIES: Final = "vllm:prefix_cache_queries_total"  # tokens, first look-ups only
PREFIX_CACHE_HITS: Final = "vllm:prefix_cache_hits_total"
NUM_PREEMPTIONS: Final = "vllm:num_preemptions_total"
PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
GENERATION_TOKENS: Final = "vllm:generation_tokens_total"
REQUEST_SUCCESS: Final = "vllm:request_success_total"  # {finished_reason}

TIME_TO_FIRST_TOKEN: Final = "vllm:time_to_first_token_seconds"
INTER_TOKEN_LATENCY: Final = "vllm:inter_token_latency_seconds"
TIME_PER_OUTPUT_TOKEN: Final = "vllm:request_time_per_output_token_seconds"
E2E_LATENCY: Final = "vllm:e2e_request_latency_seconds"
QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
PREFILL_TIME: Final = "vllm:request_prefill_time_seconds"
DECODE_TIME: Final = "vllm:request_decode_time_seconds"
REQUEST_PROMPT_TOKENS: Final = "vllm:request_prompt_tokens"
REQUEST_GENERATION_TOKENS: Final = "vllm:request_generation_tokens"
ITERATION_TOKENS: Final = "vllm:iteration_tokens_total"  # a histogram, in spite of its name

GAUGES: Final = (
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    KV_CACHE_USAGE,
    CACHE_CONFIG_INFO,
)
COUNTERS: Final = (
    PREFIX_CACHE_QUERIES,
    PREFIX_CACHE_HITS,
    NUM_PREEMPTIONS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    REQUEST_SUCCESS,
)
HISTOGRAMS: Final = (
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    TIME_PER_OUTPUT_TOKEN,
    E2E_LATENCY,
    QUEUE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    ITERATION_TOKENS,
)
