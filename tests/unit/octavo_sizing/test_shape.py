from typing import Any

import pytest

from octavo_sizing.gguf_header import GgufHeader, TensorInfo
from octavo_sizing.shape import ModelShape, ShapeError, shape_from_gguf

SMOLLM2: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100_000.0,
}


def header(*, untied: bool = False, **changes: Any) -> GgufHeader:
    names = ["token_embd.weight"] + (["output.weight"] if untied else [])
    metadata = {**SMOLLM2, **{key.replace("__", "."): value for key, value in changes.items()}}
    return GgufHeader(
        version=3,
        metadata={key: value for key, value in metadata.items() if value is not None},
        tensors={
            name: TensorInfo(name=name, shape=(576, 49152), type_id=8, offset=0, nbytes=1)
            for name in names
        },
        file_bytes=1,
    )


def test_smollm2_has_the_numbers_of_its_model_card() -> None:
    shape = shape_from_gguf(header())
    assert shape.head_dim == 64
    assert shape.vocab_size == 49152
    assert shape.rope_theta == 100_000.0
    assert shape.tied_embeddings
    assert shape.parameters == 134_515_008
    assert shape.kv_bytes_per_token(4) == 2 * 30 * 3 * 64 * 4 == 46_080


def test_untied_embeddings_count_twice() -> None:
    tied, untied = shape_from_gguf(header()), shape_from_gguf(header(untied=True))
    assert untied.parameters - tied.parameters == 49152 * 576


def test_kv_heads_default_to_heads_and_head_dim_to_their_share() -> None:
    shape = shape_from_gguf(header(llama__attention__head_count_kv=None))
    assert shape.kv_heads == 9
    assert (
        shape_from_gguf(
            header(llama__attention__key_length=128, llama__attention__value_length=128)
        ).head_dim
        == 128
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"general__architecture": None}, "general.architecture is missing"),
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__block_count": 0}, "layers is 0"),
        ({"llama__attention__head_count": 0}, "head_count is 0"),
        ({"llama__attention__head_count_kv": 2}, "cannot share 2 KV heads"),
        ({"llama__feed_forward_length": [1, 2]}, r"feed_forward_length is \[1, 2\]"),
        ({"llama__attention__value_length": 32}, "different length"),
    ],
)
def test_a_bad_number_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        shape_from_gguf(header(**changes))


def test_one_number_per_layer_is_taken_when_all_are_equal() -> None:
    assert shape_from_gguf(header(llama__feed_forward_length=[1536] * 30)).intermediate_size == 1536


def test_a_shape_refuses_nonsense() -> None:
    with pytest.raises(ShapeError, match="vocab_size is 0"):
        ModelShape(
            architecture="llama",
            layers=1,
            hidden_size=1,
            intermediate_size=1,
            attention_heads=1,
            kv_heads=1,
            head_dim=1,
            vocab_size=0,
            context_length=1,
        )
