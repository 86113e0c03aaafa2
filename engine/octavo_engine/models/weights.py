"""Strict loading: every tensor of the file is used once, every row of every parameter filled once.

A tensor that is silently left out, or a parameter that silently keeps what `torch.empty` found in
memory, gives fluent nonsense; here either is an error that names it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo_engine.models.config import ModelConfig, ModelNotSupportedError
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.gguf import GgufModel

_NAMED = 6


@dataclass(frozen=True, slots=True)
class Destination:
    """Rows of a parameter that one tensor of the file fills."""

    parameter: str
    first_row: int
    rows: int


def destinations(config: ModelConfig) -> dict[str, Destination]:
    """Tensor name of a GGUF file → the rows that it fills."""
    shape = config.shape
    query, key = shape.attention_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, inner = shape.hidden_size, shape.intermediate_size
    table = {
        "token_embd.weight": Destination("embedding", 0, shape.vocab_size),
        "output_norm.weight": Destination("output_norm", 0, hidden),
    }
    if not shape.tied_embeddings:
        table["output.weight"] = Destination("output", 0, shape.vocab_size)
    for index in range(shape.layers):
        file, ours = f"blk.{index}.", f"layers.{index}."
        table |= {
            file + "attn_norm.weight": Destination(ours + "attn_norm", 0, hidden),
            file + "attn_q.weight": Destination(ours + "qkv", 0, query),
            file + "attn_k.weight": Destination(ours + "qkv", query, key),
            file + "attn_v.weight": Destination(ours + "qkv", query + key, key),
            file + "attn_output.weight": Destination(ours + "attn_output", 0, hidden),
            file + "ffn_norm.weight": Destination(ours + "ffn_norm", 0, hidden),
            file + "ffn_gate.weight": Destination(ours + "gate_up", 0, inner),
            file + "ffn_up.weight": Destination(ours + "gate_up", inner, inner),
            file + "ffn_down.weight": Destination(ours + "down", 0, hidden),
        }
    return table


def check_names(source: GgufModel) -> None:
    """Raise ModelNotSupportedError when the file has a tensor too many or too few."""
    expected = destinations(source.config)
    present = set(source.tensor_names)
    unused = sorted(present - expected.keys())
    missing = sorted(expected.keys() - present)
    complaints = []
    if unused:
        complaints.append(f"tensors that the decoder has no use for: {_names(unused)}")
    if missing:
        complaints.append(f"no tensor for: {_names(missing)}")
    if complaints:
        raise ModelNotSupportedError(f"The file has {'; it has '.join(complaints)}.")


def load_weights(
    model: Decoder, source: GgufModel, progress: Callable[[float], None] | None = None
) -> None:
    """Fill every parameter of `model` from `source`; `progress` gets 0..1 by bytes.

    Raises ModelNotSupportedError naming tensors that are too many, too few or of a wrong shape.
    """
    check_names(source)
    parameters = model.parameters()
    table = destinations(source.config)
    filled = dict.fromkeys(parameters, 0)
    total = sum(source.header.tensors[name].nbytes for name in table)
    done = 0
    for name, place in table.items():
        rows = parameters[place.parameter][place.first_row : place.first_row + place.rows]
        info = source.header.tensors[name]
        if info.shape[::-1] != tuple(rows.shape):
            raise ModelNotSupportedError(
                f"Tensor {name!r} has the shape {list(info.shape[::-1])}; "
                f"the file's own metadata ask for {list(rows.shape)}."
            )
        array = source.read(name)
        rows.copy_(torch.from_numpy(array if array.flags.writeable else array.copy()))
        filled[place.parameter] += place.rows
        done += info.nbytes
        if progress is not None:
            progress(done / total)
    for name, tensor in parameters.items():
        assert filled[name] == tensor.shape[0], f"{name}: {filled[name]} of {tensor.shape[0]} rows"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
