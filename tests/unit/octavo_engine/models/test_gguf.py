from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q
from gguf.quants import dequantize

from octavo_engine.models.config import ModelNotSupportedError
from octavo_engine.models.gguf import GgufModel, tokenizer_spec, undo_rope_permutation
from octavo_sizing.gguf_header import GgufError, GgufHeader
from support.tiny_gguf import TINY, converter_permutation, write_tiny

STORED = [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1]


@pytest.mark.parametrize("qtype", STORED, ids=lambda qtype: qtype.name)
def test_every_tensor_is_bit_equal_to_the_gguf_packages_own_dequantization(
    qtype: Q, tmp_path: Path
) -> None:
    model = GgufModel(write_tiny(tmp_path / "m.gguf", quantization=qtype).path)
    theirs = gguf.GGUFReader(tmp_path / "m.gguf")
    assert len(theirs.tensors) == len(model.tensor_names)
    for tensor in theirs.tensors:
        expected = dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(model.read_as_stored(tensor.name), expected, tensor.name)


@pytest.mark.parametrize("qtype", [Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K], ids=lambda q: q.name)
def test_k_quants_are_read(qtype: Q, tmp_path: Path) -> None:
    # The gguf package reads these but does not write them: any bits are some numbers.
    _, size = gguf.GGML_QUANT_SIZES[qtype]
    packed = np.random.default_rng(1).integers(0, 128, (4, 2 * size), dtype=np.uint8)
    tiny = write_tiny(tmp_path / "m.gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "k.gguf"), "llama")
    for key, value in GgufModel(tiny.path).header.metadata.items():
        if key.startswith("llama."):
            kind = gguf.GGUFValueType.FLOAT32 if isinstance(value, float) else None
            writer.add_key_value(key, value, kind or gguf.GGUFValueType.UINT32)
    writer.add_tensor("token_embd.weight", np.zeros((96, 64), np.float32))
    writer.add_tensor("w", packed, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = GgufModel(tmp_path / "k.gguf")
    assert model.header.tensors["w"].shape == (512, 4)
    np.testing.assert_array_equal(model.read_as_stored("w"), dequantize(packed, qtype))


def test_q_and_k_rows_come_back_in_the_order_of_training(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "m.gguf")
    model = GgufModel(tiny.path)
    state = tiny.reference.state_dict()
    for part in ("q", "k", "v"):
        trained = state[f"model.layers.1.self_attn.{part}_proj.weight"].numpy()
        np.testing.assert_array_equal(model.read(f"blk.1.attn_{part}.weight"), trained)
    stored = model.read_as_stored("blk.1.attn_k.weight")
    assert not np.array_equal(stored, model.read("blk.1.attn_k.weight"))


def test_the_permutation_by_a_worked_example() -> None:
    # One head of four rows: the file's pairs (0, 2), (1, 3) become halves again.
    stored = np.array([[0.0], [2.0], [1.0], [3.0]], dtype=np.float32)
    assert undo_rope_permutation(stored, heads=1).flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_the_permutation_undoes_the_converters(heads: int) -> None:
    rows = np.random.default_rng(heads).normal(size=(heads * 8, 3)).astype(np.float32)
    stored = converter_permutation(rows, heads)
    np.testing.assert_array_equal(undo_rope_permutation(stored, heads), rows)


@pytest.mark.parametrize(
    "metadata",
    [
        {"rope.scaling.type": "yarn"},
        {"rope.scaling.factor": 4.0},
        {"attention.sliding_window": 64},
        {"expert_count": 8},
        {"logit_scale": 0.5},
        {"attn_logit_softcapping": 30.0},
    ],
)
def test_metadata_that_change_the_result_are_refused_by_name(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    tiny = write_tiny(tmp_path / "m.gguf", metadata=metadata)
    (key,) = metadata
    with pytest.raises(ModelNotSupportedError, match=f"llama.{key}"):
        GgufModel(tiny.path)


def test_metadata_that_say_off_are_fine(tmp_path: Path) -> None:
    off = {"rope.scaling.type": "none", "expert_count": 0, "attention.sliding_window": 0}
    GgufModel(write_tiny(tmp_path / "m.gguf", metadata=off).path)


def test_another_architecture_is_refused_and_the_supported_ones_are_named(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "m.gguf", architecture="gemma2")
    with pytest.raises(ModelNotSupportedError, match=r"'gemma2'.*'llama' is supported"):
        GgufModel(tiny.path)


def test_partly_rotated_heads_are_refused(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "m.gguf")
    header = GgufModel(tiny.path).header
    header.metadata["llama.rope.dimension_count"] = 8
    from octavo_engine.models.gguf import _config

    with pytest.raises(ModelNotSupportedError, match="8 of 16 dimensions"):
        _config(header)


@pytest.fixture
def header(tmp_path: Path) -> GgufHeader:
    return GgufModel(write_tiny(tmp_path / "m.gguf").path).header


def test_the_tokenizer_is_described(header: GgufHeader) -> None:
    header.metadata["tokenizer.chat_template"] = "{{ messages }}"
    spec = tokenizer_spec(header)
    assert (spec.kind, spec.pre_tokenizer) == ("gpt2", "smollm")
    assert len(spec.tokens) == TINY["vocab_size"]
    assert spec.merges == ["t 0", "t 1"]
    assert (spec.bos_token_id, spec.eos_token_id) == (0, 1)
    assert spec.eos_token_ids == {1, TINY["vocab_size"] - 1}  # the control token <|im_end|> too
    assert spec.chat_template == "{{ messages }}"
    assert not spec.add_bos_token
    assert not spec.add_space_prefix


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("merges", None, "no merges"),
        ("merges", [1, 2], "tokenizer.ggml.merges is"),
        ("tokens", None, "carries no tokenizer"),
        ("token_type", [1, 1], "96 tokens and 2 token types"),
        ("eos_token_id", 96, "eos_token_id is 96, of 96 tokens"),
    ],
)
def test_a_broken_tokenizer_is_named(key: str, value: Any, says: str, header: GgufHeader) -> None:
    header.metadata.pop(f"tokenizer.ggml.{key}", None)
    if value is not None:
        header.metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(GgufError, match=says):
        tokenizer_spec(header)


def test_what_cannot_be_dequantized_is_refused(tmp_path: Path) -> None:
    extra = {"numbers": np.arange(4, dtype=np.int32)}
    model = GgufModel(write_tiny(tmp_path / "m.gguf", extra=extra).path)
    with pytest.raises(ModelNotSupportedError, match="'numbers' is stored as I32"):
        model.read("numbers")
