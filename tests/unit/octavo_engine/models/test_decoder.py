"""The decoder alone against transformers: one sequence, the reference attention."""

from pathlib import Path

import pytest
import torch

from octavo_engine.kernels.paged_attention import PagedBatch, ReferenceAttention
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.gguf import GgufModel
from octavo_engine.models.layers import RMSNorm, RotaryEmbedding, rotate, swiglu
from octavo_engine.models.weights import load_weights
from support.tiny_gguf import TINY, write_tiny


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_transformers(tied: bool, tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "m.gguf", tied=tied)
    source = GgufModel(tiny.path)
    model = Decoder(source.config, max_positions=128, dtype=torch.float32)
    load_weights(model, source)
    tokens = torch.randint(TINY["vocab_size"], (37,), generator=torch.Generator().manual_seed(1))
    caches = [
        [torch.zeros(40, TINY["num_key_value_heads"], 1, TINY["head_dim"]) for _ in range(2)]
        for _ in range(2)
    ]
    attention = ReferenceAttention(*caches).prepare(
        PagedBatch(
            query_lens=[37],
            context_lens=[37],
            block_table=torch.arange(1, 38).unsqueeze(0),
            slots=torch.arange(1, 38),
        )
    )
    with torch.inference_mode():
        logits = model.logits(model.hidden_states(tokens, torch.arange(37), attention))
        expected = tiny.reference(tokens.unsqueeze(0)).logits[0]
    assert expected.std() > 0.5, "a model whose logits hardly differ would prove nothing"
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


def test_rms_norm_by_hand() -> None:
    norm = RMSNorm(torch.tensor([1.0, 2.0]), eps=0.0)
    out = norm(torch.tensor([[3.0, 4.0]]))
    rms = (25 / 2) ** 0.5
    torch.testing.assert_close(out, torch.tensor([[3 / rms, 8 / rms]]))


def test_rope_turns_each_pair_by_its_angle() -> None:
    rope = RotaryEmbedding(4, theta=100.0, max_positions=10, device="cpu")
    x = torch.tensor([[[1.0, 1.0, 0.0, 0.0]]])
    cos, sin = rope.at(torch.tensor([3]), torch.float32)
    angles = torch.tensor([3.0, 3.0 / 10])  # 100 ** (−2/4) is a tenth
    expected = torch.cat([angles.cos(), angles.sin()])
    torch.testing.assert_close(rotate(x, cos, sin)[0, 0], expected)


def test_swiglu_by_hand() -> None:
    out = swiglu(torch.tensor([[0.0, 2.0, 5.0, 3.0]]))
    torch.testing.assert_close(out, torch.tensor([[0.0, 2 / (1 + 2.718281828**-2) * 3]]))
