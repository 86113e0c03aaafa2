"""The memory of the paged KV cache."""

import torch
from torch import Tensor

from octavo_engine.config import CacheShape


class KvCache:
    """K and V of every layer, [num_blocks, kv_heads, block_size, head_dim] each."""

    def __init__(
        self,
        shape: CacheShape,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        # Not zeroed: on a CPU the kernel gives pages when they are first written to, and zeroing
        # 4 GiB would take longer than loading the model. Attention never uses what nobody wrote.
        both = torch.empty(
            (layers, 2, shape.num_blocks, kv_heads, shape.block_size, head_dim),
            dtype=dtype,
            device=device,
        )
        self.shape = shape
        self.keys: list[Tensor] = [both[layer, 0] for layer in range(layers)]
        self.values: list[Tensor] = [both[layer, 1] for layer in range(layers)]
