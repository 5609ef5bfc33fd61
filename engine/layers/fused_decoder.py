"""All layers of a decoder as one kernel, for short chunks of small models on a CPU.

The results are bitwise those of the layers, and the weights are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.attention.cpu import CpuStepAttention
from engine.layers.attention import SelfAttention, StepContext
from engine.layers.mlp import GatedMLP
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from kernels import cpu
from kernels.cpu_decoder import Decoder, LayerWeights

MAX_WEIGHT_BYTES = 64 << 20
"""Every thread reads all weights; up to this size the last-level cache holds them."""
MAX_TOKENS = 64
"""With more tokens, products that read the weights once for all rows gain more than it gains to
synchronize threads less often."""


class DecoderLayer(Protocol):
    """The structure that a layer must have."""

    input_layernorm: RMSNorm
    post_attention_layernorm: RMSNorm

    @property
    def self_attn(self) -> Module: ...

    @property
    def mlp(self) -> Module: ...


class FusedDecoder:
    """Runs all layers and the final norm by ``kernels.cpu_decoder``."""

    def __init__(self, decoder: Decoder, attention: Sequence[SelfAttention]) -> None:
        self._decoder = decoder
        self._attention = attention

    @classmethod
    def of(
        cls, layers: Sequence[DecoderLayer], norm: RMSNorm, cos_sin: torch.Tensor
    ) -> FusedDecoder | None:
        """The layers, which must be packed, as one kernel; None if it does not support them."""
        weights = [_weights(layer) for layer in layers]
        packed = [layer for layer in weights if layer is not None]
        attentions = [
            m for m in (layer.self_attn for layer in layers) if isinstance(m, SelfAttention)
        ]
        if len(packed) < len(layers):
            return None
        attention = attentions[0]
        num_bytes = sum(
            product.num_bytes
            for layer in packed
            for product in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        fits = attention.head_dim <= cpu.MAX_HEAD_DIM and num_bytes <= MAX_WEIGHT_BYTES
        fits &= attention.head_dim == cos_sin.shape[1]
        if not fits:
            return None
        decoder = Decoder(
            packed,
            norm.weight.data,
            cos_sin,
            num_q_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            eps=norm.eps,
            scale=attention.scale,
        )
        return cls(decoder, attentions)

    def serves(self, step: StepContext) -> bool:
        """Whether it can run a step: few tokens, in short chunks, without adapters."""
        if step.adapted or len(step.groups) > 1:
            return False
        attend = step.groups[0].attend
        short = isinstance(attend, CpuStepAttention) and attend.rest is None
        return short and len(step.positions) <= MAX_TOKENS

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """x: [num_tokens, hidden], the embeddings, which are overwritten. Returns the normed hidden
        states in the same shape."""
        ((slots, attend),) = step.groups
        assert isinstance(attend, CpuStepAttention)
        scales = [a.kv_scales for a in self._attention if a.kv_scales is not None]
        return self._decoder(
            x,
            step.kv_cache,
            attend.struct,
            step.positions,
            slots,
            step.taps,
            [(scale.k, scale.v) for scale in scales] or None,
        )


def _weights(layer: DecoderLayer) -> LayerWeights | None:
    attention, mlp = layer.self_attn, layer.mlp
    if not (isinstance(attention, SelfAttention) and attention.is_plain):
        return None
    if not (isinstance(mlp, GatedMLP) and mlp.activation == "silu"):
        return None
    qkv, output = attention.qkv_proj.packed, attention.o_proj.packed
    gate_up, down = mlp.gate_up_proj.packed, mlp.down_proj.packed
    if (
        isinstance(qkv, cpu.PackedLinear)
        and isinstance(output, cpu.PackedLinear)
        and isinstance(gate_up, cpu.PackedLinear)
        and isinstance(down, cpu.PackedLinear)
    ):
        norms = layer.input_layernorm.weight.data, layer.post_attention_layernorm.weight.data
        return LayerWeights(*norms, qkv, output, gate_up, down)
    return None
