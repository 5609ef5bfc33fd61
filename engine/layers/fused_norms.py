"""Decode steps of few tokens on a GPU, with the small operations inside the products beside them.

A norm is part of the product that reads its result, an addition to the residual part of the one
whose output is added::

    qkv        norm, then product                        (the first layer's norm stands alone)
    o          product, then addition and sums of squares of the residual, for the next norm
    gate, up   norm, then product, then gating
    down       product, then addition and sums of squares
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.layers.attention import SelfAttention, StepContext
from engine.layers.fused_decoder import DecoderLayer
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from kernels import cuda, products

MAX_TOKENS = cuda.MAX_SKINNY_TOKENS


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: RMSNorm
    attention: SelfAttention
    attention_norm: RMSNorm
    mlp: GatedMLP


class FusedNorms:
    def __init__(self, layers: Sequence[_Layer], norm: RMSNorm) -> None:
        self._layers = layers
        self._norm = norm

    @classmethod
    def of(cls, layers: Sequence[DecoderLayer], norm: RMSNorm) -> FusedNorms | None:
        """The layers as they are; None where one of them is made of something else."""
        fused = [_layer(layer) for layer in layers]
        plain = [layer for layer in fused if layer is not None]
        return cls(plain, norm) if len(plain) == len(layers) else None

    def serves(self, x: torch.Tensor, step: StepContext) -> bool:
        return len(x) <= MAX_TOKENS and not step.adapted and not step.taps

    def __call__(
        self, x: torch.Tensor, tables: Sequence[torch.Tensor], step: StepContext
    ) -> torch.Tensor:
        """x: [num_tokens, hidden], the embeddings, overwritten; returns that shape, normed.
        tables: each layer's, see ``ops.rope_and_cache``."""
        sums: torch.Tensor | None = None
        for layer, cos_sin in zip(self._layers, tables, strict=True):
            attention, mlp = layer.attention, layer.mlp
            if sums is None:
                qkv = attention.qkv_proj(layer.input_norm(x))
            else:
                qkv = _normed(x, sums, layer.input_norm, attention.qkv_proj)
            attended = attention.attend(qkv, cos_sin, step)
            sums = _added(x, attended, attention.o_proj)
            inner = _normed(x, sums, layer.attention_norm, mlp.gate_up_proj, gated=True)
            sums = _added(x, inner, mlp.down_proj)
        return self._norm(x)


def _normed(
    x: torch.Tensor, sums: torch.Tensor, norm: RMSNorm, linear: Linear, *, gated: bool = False
) -> torch.Tensor:
    weight, bias = linear.weight.data, None if linear.bias is None else linear.bias.data
    return products.normed_linear(x, sums, norm.weight.data, norm.eps, weight, bias, gated=gated)


def _added(residual: torch.Tensor, x: torch.Tensor, linear: Linear) -> torch.Tensor:
    bias = None if linear.bias is None else linear.bias.data
    return products.linear_add(residual, x, linear.weight.data, bias)


def _layer(layer: DecoderLayer) -> _Layer | None:
    attention, mlp = layer.self_attn, layer.mlp
    if not (isinstance(attention, SelfAttention) and isinstance(mlp, GatedMLP)):
        return None
    norms = layer.input_layernorm, layer.post_attention_layernorm
    linears = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
    plain = mlp.activation == "silu" and all(type(norm) is RMSNorm for norm in norms)
    if not plain or not all(_multiplies(linear) for linear in linears):
        return None
    return _Layer(norms[0], attention, norms[1], mlp)


def _multiplies(linear: Linear) -> bool:
    """Whether the product with few rows takes it."""
    features, k = sum(linear.parts.values()), linear.in_features
    return linear.quantized is None and features % 16 == 0 == k % 64
