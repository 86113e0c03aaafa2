"""A tiny random llama model, written as a GGUF file as llama.cpp's converter would write it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


@dataclass(kw_only=True)
class TinyModel:
    path: Path
    reference: Any  # transformers' LlamaForCausalLM with the weights that the file holds


def converter_permutation(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows: halves of a head become adjacent pairs."""
    half = weight.shape[0] // heads // 2
    split = weight.reshape(heads, 2, half, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def write_tiny(
    path: Path,
    *,
    tied: bool = True,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
    skip: frozenset[str] = frozenset(),
    extra: dict[str, np.ndarray] | None = None,
    architecture: str = "llama",
    context_length: int = TINY["max_position_embeddings"],
    readable: bool = False,
) -> TinyModel:
    """Write a tiny llama; two-dimensional weights are stored in `quantization`.

    `metadata` adds keys below the architecture's name; `skip` leaves tensors out, `extra` adds.
    `readable` gives it a tokenizer that can be served: a token for each letter of ASCII.
    """
    reference = make_reference(tied=tied, seed=seed)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(TINY["num_hidden_layers"])
    writer.add_context_length(context_length)
    writer.add_embedding_length(TINY["hidden_size"])
    writer.add_feed_forward_length(TINY["intermediate_size"])
    writer.add_head_count(TINY["num_attention_heads"])
    writer.add_head_count_kv(TINY["num_key_value_heads"])
    writer.add_key_length(TINY["head_dim"])
    writer.add_value_length(TINY["head_dim"])
    writer.add_layer_norm_rms_eps(TINY["rms_norm_eps"])
    writer.add_rope_dimension_count(TINY["head_dim"])
    writer.add_rope_freq_base(10_000.0)
    for key, value in (metadata or {}).items():
        writer.add_key_value(f"{architecture}.{key}", value, _value_type(value))
    tokens = [f"t{index}" for index in range(TINY["vocab_size"] - 1)] + ["<|im_end|>"]
    merges = ["t 0", "t 1"]
    if readable:
        tokens, merges = [*map(chr, range(33, 127)), "ab", "<|im_end|>"], ["a b"]
        assert len(tokens) == TINY["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    state = reference.state_dict()
    with torch.no_grad():
        for name, source in _names(tied).items():
            weight = state[source].numpy()
            heads = {"q_proj": TINY["num_attention_heads"], "k_proj": TINY["num_key_value_heads"]}
            for part, count in heads.items():
                if part in source:
                    weight = converter_permutation(weight, count)
            qtype = quantization if weight.ndim == 2 else GGMLQuantizationType.F32
            packed = quantize(weight, qtype)
            held = dequantize(packed, qtype).reshape(weight.shape)
            for part, count in heads.items():
                if part in source:
                    held = _undo(held, count)
            state[source].copy_(torch.from_numpy(held.copy()))
            if name not in skip:
                writer.add_tensor(name, packed, raw_dtype=qtype)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyModel(path=path, reference=reference)


def make_reference(*, tied: bool, seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(**TINY, tie_word_embeddings=tied, attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Larger than a training start, so that wrong attention changes tokens; norms not 1.
            spread = 0.3 if parameter.ndim == 2 else 0.5
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * spread + offset)
    return model


def _undo(weight: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `converter_permutation`, by index, independent of the engine's."""
    rows = np.arange(weight.shape[0])
    stored = converter_permutation(rows, heads)
    inverse = np.empty_like(rows)
    inverse[stored] = rows
    return weight[inverse]


def _names(tied: bool) -> dict[str, str]:
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if not tied:
        names["output.weight"] = "lm_head.weight"
    for index in range(TINY["num_hidden_layers"]):
        file, theirs = f"blk.{index}.", f"model.layers.{index}."
        names |= {
            file + "attn_norm.weight": theirs + "input_layernorm.weight",
            file + "attn_q.weight": theirs + "self_attn.q_proj.weight",
            file + "attn_k.weight": theirs + "self_attn.k_proj.weight",
            file + "attn_v.weight": theirs + "self_attn.v_proj.weight",
            file + "attn_output.weight": theirs + "self_attn.o_proj.weight",
            file + "ffn_norm.weight": theirs + "post_attention_layernorm.weight",
            file + "ffn_gate.weight": theirs + "mlp.gate_proj.weight",
            file + "ffn_up.weight": theirs + "mlp.up_proj.weight",
            file + "ffn_down.weight": theirs + "mlp.down_proj.weight",
        }
    return names


def _value_type(value: Any) -> gguf.GGUFValueType:
    if isinstance(value, bool):
        return gguf.GGUFValueType.BOOL
    if isinstance(value, int):
        return gguf.GGUFValueType.UINT32
    if isinstance(value, float):
        return gguf.GGUFValueType.FLOAT32
    assert isinstance(value, str)
    return gguf.GGUFValueType.STRING
