import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Q

from octavo_engine.models.config import ModelNotSupportedError
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.gguf import GgufModel
from octavo_engine.models.weights import destinations, load_weights
from support.tiny_gguf import TINY, write_tiny


def make(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Decoder, GgufModel]:
    source = GgufModel(path)
    return Decoder(source.config, max_positions=128, dtype=dtype), source


@pytest.mark.parametrize("tied", [True, False])
def test_the_destinations_cover_every_row_of_every_parameter_once(
    tied: bool, tmp_path: Path
) -> None:
    model, source = make(write_tiny(tmp_path / "m.gguf", tied=tied).path)
    covered = {name: [0] * len(tensor) for name, tensor in model.parameters().items()}
    for place in destinations(source.config).values():
        for row in range(place.first_row, place.first_row + place.rows):
            covered[place.parameter][row] += 1
    assert all(set(rows) == {1} for rows in covered.values())


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_gets_the_weights_of_the_file(tied: bool, tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "m.gguf", tied=tied, quantization=Q.Q8_0)
    model, source = make(tiny.path)
    for tensor in model.parameters().values():
        tensor.fill_(float("nan"))
    shares: list[float] = []
    load_weights(model, source, shares.append)
    state = tiny.reference.state_dict()
    assert torch.equal(model.embedding, state["model.embed_tokens.weight"])
    assert (model.output.weight is model.embedding) == tied
    assert torch.equal(model.output.weight, state["lm_head.weight"])
    assert not any(tensor.isnan().any() for tensor in model.parameters().values())
    qkv = torch.cat([state[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(model.layers[1].qkv.weight, qkv)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize(
    "missing", ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight"]
)
def test_a_missing_tensor_is_named(missing: str, tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "m.gguf", skip=frozenset({missing}))
    model, source = make(tiny.path)
    with pytest.raises(ModelNotSupportedError, match=f"no tensor for: {re.escape(missing)}"):
        load_weights(model, source)


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    extra = {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    model, source = make(write_tiny(tmp_path / "m.gguf", extra=extra).path)
    with pytest.raises(ModelNotSupportedError, match=r"no use for: blk\.0\.attn_q\.bias"):
        load_weights(model, source)


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    name = "blk.0.ffn_up.weight"
    wrong = {name: np.zeros((TINY["intermediate_size"] - 1, TINY["hidden_size"]), np.float32)}
    tiny = write_tiny(tmp_path / "m.gguf", skip=frozenset({name}), extra=wrong)
    model, source = make(tiny.path)
    with pytest.raises(ModelNotSupportedError, match=r"\[95, 64\].*\[96, 64\]"):
        load_weights(model, source)


def test_weights_are_rounded_to_the_models_dtype(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "m.gguf")
    model, source = make(tiny.path, torch.bfloat16)
    load_weights(model, source)
    expected = tiny.reference.state_dict()["model.layers.0.mlp.down_proj.weight"].bfloat16()
    assert torch.equal(model.layers[0].down.weight, expected)
