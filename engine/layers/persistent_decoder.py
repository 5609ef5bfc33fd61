"""All layers of a decoder as one kernel on a GPU, for decode steps of few tokens.

Between kernels a GPU loads no weights, and a step of few tokens does little else than load them.
The kernel rounds where the layers do, but sums in another order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch

from engine.attention.base import plain_batch
from engine.layers.attention import SelfAttention, StepContext
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from kernels import cuda
from kernels.persistent_decoder import (
    MAX_DRAFTED_TOKENS,
    MAX_TOKENS,
    LayerWeights,
    PersistentDecoder,
    refusal,
)

logger = logging.getLogger(__name__)


class DecoderLayer(Protocol):
    """The structure that a layer must have."""

    input_layernorm: RMSNorm
    post_attention_layernorm: RMSNorm

    @property
    def self_attn(self) -> Module: ...


class PersistentLayers:
    max_batch = MAX_TOKENS
    """Sequences of a step, of each one token."""
    max_drafted = MAX_DRAFTED_TOKENS
    """Tokens of a step with several of each sequence, or with taps."""

    def __init__(self, decoder: PersistentDecoder, norm: RMSNorm, cos_sin: torch.Tensor) -> None:
        self._decoder = decoder
        self._norm = norm
        self._cos_sin = cos_sin

    @classmethod
    def of(
        cls, layers: Sequence[DecoderLayer], norm: RMSNorm, cos_sin: torch.Tensor
    ) -> PersistentLayers | None:
        """The packed layers, of which each computes what ``LlamaDecoderLayer`` does, with
        ``cos_sin``; None where the kernel does not serve them.

        norm: what the hidden states behind them go through.
        """
        first = layers[0].self_attn
        weights = [
            found
            for layer in layers
            if (found := layer_weights(layer)) is not None and _attends_to_all(layer.self_attn)
        ]
        if not isinstance(first, SelfAttention) or len(weights) < len(layers):
            return None
        shape = {
            "num_heads": first.num_heads,
            "num_kv_heads": first.num_kv_heads,
            "head_dim": first.head_dim,
        }
        is_built = not cos_sin.is_cuda or cuda.available()
        turns_all = cos_sin.shape[1] == first.head_dim
        if not (is_built and turns_all) or refusal(weights, **shape) is not None:
            return None
        eps = layers[0].input_layernorm.eps
        head_eps = eps if first.q_norm is None else first.q_norm.eps
        decoder = PersistentDecoder(weights, **shape, eps=eps, head_eps=head_eps, scale=first.scale)
        why = decoder.refused()
        if why is not None:
            logger.warning("Layers run one by one: this GPU launches no kernel for all (%s)", why)
            return None
        return cls(decoder, norm, cos_sin)

    def serves(self, step: StepContext) -> bool:
        """Whether the runner wants one kernel in this step, and it can be."""
        if not step.one_kernel or step.adapted or len(step.groups) > 1 or step.wanted:
            return False
        batch = plain_batch(step.groups[0].attend)
        if batch is None:
            return False
        num_tokens = len(step.positions)
        is_plain = num_tokens == len(batch.seq_lens) and not step.taps
        return num_tokens <= (self.max_batch if is_plain else self.max_drafted)

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """x: [tokens, hidden], the embeddings. Returns the normed hidden states: of that shape."""
        ((slots, attend),) = step.groups
        batch = plain_batch(attend)
        assert batch is not None
        hidden = self._decoder(
            x,
            step.kv_cache,
            self._cos_sin,
            step.positions,
            slots,
            batch.block_table,
            batch.seq_lens,
            step.taps,
        )
        return self._norm(hidden)


def layer_weights(layer: DecoderLayer) -> LayerWeights | None:
    """The weights of a packed layer; None if it computes something else from them than
    ``LayerWeights`` says. How it attends is left aside."""
    # A mixture of experts has another name in some families.
    attention, mlp = layer.self_attn, getattr(layer, "mlp", None)
    if not (isinstance(attention, SelfAttention) and isinstance(mlp, GatedMLP)):
        return None
    if mlp.activation != "silu":
        return None
    qkv, output, gate_up, down = linears = (
        attention.qkv_proj,
        attention.o_proj,
        mlp.gate_up_proj,
        mlp.down_proj,
    )
    biased = any(linear.bias is not None for linear in (output, gate_up, down))
    if biased or not all(map(_is_plain, linears)):
        return None
    return LayerWeights(
        input_norm=layer.input_layernorm.weight.data,
        qkv=qkv.weight.data,
        qkv_bias=None if qkv.bias is None else qkv.bias.data,
        q_norm=None if attention.q_norm is None else attention.q_norm.weight.data,
        k_norm=None if attention.k_norm is None else attention.k_norm.weight.data,
        output=output.weight.data,
        attended_norm=layer.post_attention_layernorm.weight.data,
        gate_up=gate_up.weight.data,
        down=down.weight.data,
    )


def _attends_to_all(attention: Module) -> bool:
    """With scores as they are."""
    return (
        isinstance(attention, SelfAttention)
        and attention.window is None
        and attention.softcap is None
    )


def _is_plain(linear: Linear) -> bool:
    return linear.quantized is None and linear.packed is None
