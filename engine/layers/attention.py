"""Self-attention over the paged cache, and what one step passes through all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.base import StepAttention
from engine.layers.linear import Linear
from engine.layers.module import Module
from kernels import ops

KVCache = list[tuple[torch.Tensor, torch.Tensor]]
"""(k_cache, v_cache) of each layer: [num_blocks, block_size, num_kv_heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the layers of one step share."""

    positions: torch.Tensor
    """[num_tokens] int64"""
    slots: torch.Tensor
    """[num_tokens] int64: where each token's key and value go; -1 for padding."""
    attend: StepAttention
    kv_cache: KVCache


class SelfAttention(Module):
    """Fused QKV, rotary embedding, grouped-query attention, output projection."""

    def __init__(
        self,
        layer: int,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layer = layer
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
        self.qkv_proj = Linear(
            hidden_size,
            {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size},
            bias=bias,
            dtype=dtype,
            device=device,
        )
        self.o_proj = Linear(q_size, {"": hidden_size}, bias=bias, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor, cos_sin: torch.Tensor, step: StepContext) -> torch.Tensor:
        """x: [num_tokens, hidden]; cos_sin: see ``ops.rope_and_cache``."""
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        q, k, v = qkv.split_with_sizes((self.num_heads, self.num_kv_heads, self.num_kv_heads), 1)
        k_cache, v_cache = step.kv_cache[self.layer]
        ops.rope_and_cache(q, k, v, k_cache, v_cache, cos_sin, step.positions, step.slots)
        attended = step.attend(q, k_cache, v_cache, self.scale)
        return self.o_proj(attended.view(x.shape[0], -1))
