"""A decoder layer on a GPU as two calls, one before and one after attention.

For steps that are not in a CUDA graph: there a slow host keeps the GPU waiting, and each operation
of its own takes the host several microseconds.

The results are bitwise those of the layer, except for few tokens with adapters, which the layer
adds inside of its products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.layers.attention import SelfAttention, StepContext
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from kernels import cuda, cuda_layer
from kernels.cuda_layer import NO_HEAD_NORMS, HeadNorms, Matrix, Norm


class DecoderLayer(Protocol):
    """The structure that a layer must have."""

    input_layernorm: RMSNorm
    post_attention_layernorm: RMSNorm

    @property
    def self_attn(self) -> Module: ...


class JoinedLayer:
    """Calls the kernels of a layer; the weights are the layer's own."""

    def __init__(self, layer: DecoderLayer, attention: SelfAttention, mlp: GatedMLP) -> None:
        self._attention, self._mlp = attention, mlp
        self._input_norm = _norm(layer.input_layernorm)
        self._attended_norm = _norm(layer.post_attention_layernorm)
        self._head_norms = NO_HEAD_NORMS
        q_norm, k_norm = attention.q_norm, attention.k_norm
        if q_norm is not None and k_norm is not None:
            self._head_norms = HeadNorms(q_norm.weight.data, k_norm.weight.data, q_norm.eps)

    @classmethod
    def of(cls, layer: DecoderLayer) -> JoinedLayer | None:
        """``layer``, which must be packed, as two calls; None if it has other parts than these."""
        # In some families a mixture of experts has another name than ``mlp``.
        attention, mlp = layer.self_attn, getattr(layer, "mlp", None)
        if not (isinstance(attention, SelfAttention) and isinstance(mlp, GatedMLP)):
            return None
        linears = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
        plain = all(linear.quantized is None and linear.packed is None for linear in linears)
        return cls(layer, attention, mlp) if plain and mlp.activation == "silu" else None

    @classmethod
    def of_all(cls, layers: Sequence[DecoderLayer]) -> list[JoinedLayer] | None:
        """All layers as two calls each; None unless that is possible for all of them, and they are
        on a GPU that has the kernels."""
        weight = layers[0].input_layernorm.weight.data
        if not (weight.is_cuda and weight.dtype in cuda.FLOATS and cuda.available()):
            return None
        joined = [one for one in map(cls.of, layers) if one is not None]
        return joined if len(joined) == len(layers) else None

    def serves(self, step: StepContext) -> bool:
        """Whether it can run a step: any, unless it has adapters that only the layer can add."""
        if not step.adapted:
            return True
        attention, mlp = self._attention, self._mlp
        linears = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
        return all(_adapters(linear, len(step.positions)) is not None for linear in linears)

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor,
        step: StepContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``LlamaDecoderLayer``, in a step that it ``serves``."""
        attention = self._attention
        slots, attend = step.of(attention.layer)
        scales = attention.kv_scales
        q = cuda_layer.attention_inputs(
            x,
            residual,
            self._input_norm,
            _matrix(attention.qkv_proj, x.shape[0]),
            self._head_norms,
            step.kv_cache[attention.layer],
            (None, None) if scales is None else (scales.k, scales.v),
            cos_sin,
            step.positions,
            slots,
        )
        residual = step.kept(x if residual is None else residual)
        attended = attention.attend(attend, q, step)
        del q  # with the whole projection: the feed-forward block takes most of a step's memory
        rows = attended.shape[0]
        fed = cuda_layer.feed_forward(
            attended,
            residual,
            _matrix(attention.o_proj, rows),
            self._attended_norm,
            _matrix(self._mlp.gate_up_proj, rows, gated=True),
            _matrix(self._mlp.down_proj, rows),
        )
        return fed, residual


def _norm(norm: RMSNorm) -> Norm:
    return Norm(norm.weight.data, norm.eps)


def _matrix(linear: Linear, rows: int, *, gated: bool = False) -> Matrix:
    weight, bias, adapters = linear.weight.data, linear.bias, _adapters(linear, rows)
    assert adapters is not None
    code = linear.products.code(rows, weight, gated=gated and not adapters)
    return Matrix(weight, None if bias is None else bias.data, code, adapters)


def _adapters(linear: Linear, rows: int) -> tuple[torch.Tensor, ...] | None:
    return () if linear.addition is None else linear.addition.joined(rows)
