"""Plain descriptions that a model's files are read into, shared by both towers. No torch."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec:
    """A tokenizer as its file describes it; `serving.tokenizer` builds the working one.

    token_types are GGUF's: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    """

    kind: str  # tokenizer.ggml.model: "gpt2" is byte-level BPE
    pre_tokenizer: str  # tokenizer.ggml.pre: "smollm", "llama-bpe", "qwen2", …
    tokens: list[str]
    token_types: list[int]
    merges: list[str]
    bos_token_id: int | None
    eos_token_id: int | None
    eos_token_ids: frozenset[int]  # every token that ends a generation
    add_bos_token: bool = False
    add_space_prefix: bool = False
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The paged KV cache: `num_blocks` blocks, block 0 the null block, of `block_size` tokens."""

    num_blocks: int
    block_size: int
    bytes_per_block: int

    @property
    def usable_tokens(self) -> int:
        """Tokens that one sequence can hold when it has the cache for itself."""
        return (self.num_blocks - 1) * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What serving must know of a loaded model."""

    name: str
    vocab_size: int
    max_model_len: int
    tokenizer: TokenizerSpec
    cache: CacheShape
    notes: list[str] = field(default_factory=list)  # what was chosen at load, for the start-up log
