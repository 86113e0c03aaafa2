"""The operators of a decoder layer. Tensors are [tokens, features]; rows never see each other."""

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear:
    """x @ weight.T for a dense weight of [outputs, inputs]."""

    __slots__ = ("weight",)

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RMSNorm:
    """x / rms(x) · weight (Zhang and Sennrich 2019), the mean in fp32."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class RotaryEmbedding:
    """Rotation of halves by position · theta^(−2i/d) (Su et al. 2021), angles in fp32."""

    def __init__(self, head_dim: int, theta: float, max_positions: int, device: str) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float()
        inverse = 1.0 / (theta ** (exponents / head_dim))
        angles = torch.outer(torch.arange(max_positions, device=device).float(), inverse)
        # For both halves at once: (a, b) · (cos, cos) + (b, a) · (−sin, sin).
        self._cos = torch.cat((angles.cos(), angles.cos()), dim=-1)
        self._sin = torch.cat((-angles.sin(), angles.sin()), dim=-1)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin of `positions`, [tokens, 1, head_dim]: one look-up for all layers."""
        return (
            self._cos[positions].unsqueeze(1).to(dtype),
            self._sin[positions].unsqueeze(1).to(dtype),
        )


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[tokens, heads, head_dim], rotated by what `RotaryEmbedding.at` gives."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up (Shazeer 2020), for gate and up side by side in the last dimension."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
