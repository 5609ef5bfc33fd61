"""Attention whose result is gated (arXiv 2505.06708)."""

from __future__ import annotations

import torch

from engine.layers.attention import AttentionConfig, SelfAttention, StepContext
from engine.layers.linear import Linear
from engine.parallel.group import Output
from kernels.rounded import Activations


class GatedAttention(SelfAttention):
    """Each head's result is multiplied by the sigmoid of a projection of the input. The checkpoint
    holds each head's query and gate side by side."""

    def __init__(
        self, layer: int, config: AttentionConfig, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layer, config, dtype=dtype, device=device)
        q_size, kv_size = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        self.qkv_proj = Linear(
            config.hidden_size,
            {"q_proj": 2 * q_size, "k_proj": kv_size, "v_proj": kv_size},
            bias=config.bias,
            dtype=dtype,
            device=device,
        )

    def __call__(self, x: Activations, cos_sin: torch.Tensor, step: StepContext) -> Output:
        projected = self.qkv_proj(x)
        width = 2 * self.num_heads * self.head_dim
        queries, rest = projected[:, :width], projected[:, width:]
        q, gate = queries.reshape(len(projected), self.num_heads, 2, -1).unbind(2)
        qkv = torch.cat((q.flatten(1), rest), -1)
        attended = self.attended(qkv, cos_sin, step)
        return self.o_proj.output(attended * step.kept(gate.flatten(1)).sigmoid())
