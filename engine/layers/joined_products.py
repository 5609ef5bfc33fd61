"""Decoder layers on a GPU as one kernel behind each attention, for steps of 17 to 64 tokens.

A layer has six kernels there, and between them the GPU loads no weights, which is most of what such
steps do. The one kernel rounds where the layers do, but sums in another order, and scales normed
rows behind the product. Attention stays as it is: with windows, shared prefixes, any cache.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from engine.layers.attention import SelfAttention, StepContext
from engine.layers.norm import RMSNorm
from engine.layers.persistent_decoder import DecoderLayer, layer_weights
from kernels import cuda
from kernels.layer_products import MAX_TOKENS, MIN_TOKENS, LayerProducts, refusal

logger = logging.getLogger(__name__)


class JoinedProducts:
    num_tokens = range(MIN_TOKENS, MAX_TOKENS + 1)
    """Of a step."""

    def __init__(
        self,
        attentions: Sequence[SelfAttention],
        products: LayerProducts,
        norms: tuple[RMSNorm, RMSNorm],
    ) -> None:
        """norms: before the first layer, and behind the last."""
        self._attentions = attentions
        self._products = products
        self._first_norm, self._norm = norms

    @classmethod
    def of(cls, layers: Sequence[DecoderLayer], norm: RMSNorm) -> JoinedProducts | None:
        """The packed layers, of which each computes what ``LlamaDecoderLayer`` does; None where the
        kernel does not serve them.

        norm: what the hidden states behind them go through.
        """
        weights = [found for layer in layers if (found := layer_weights(layer)) is not None]
        attentions = [
            attention for layer in layers if isinstance(attention := layer.self_attn, SelfAttention)
        ]
        if len(weights) < len(layers) or refusal(weights) is not None:
            return None
        first_norm = layers[0].input_layernorm
        if first_norm.weight.data.is_cuda and not cuda.available():
            return None
        products = LayerProducts(weights, eps=first_norm.eps)
        why = products.refused()
        if why is not None:
            logger.warning("No one kernel for the products of a layer: this GPU %s", why)
            return None
        return cls(attentions, products, (first_norm, norm))

    def serves(self, step: StepContext) -> bool:
        """Whether the runner wants such kernels in this step, and they can be."""
        if not step.joins_products or step.adapted or step.wanted is not None:
            return False
        return len(step.positions) in self.num_tokens

    def __call__(
        self, x: torch.Tensor, tables: Sequence[torch.Tensor], step: StepContext
    ) -> torch.Tensor:
        """x: [tokens, hidden], the embeddings, which are overwritten; tables: ``cos_sin`` of each
        layer. Returns the normed hidden states: of that shape."""
        qkv: torch.Tensor | None = None
        for index, (attention, cos_sin) in enumerate(zip(self._attentions, tables, strict=True)):
            if index in step.taps:
                step.taps[index].copy_(x)
            if qkv is None:
                qkv = attention.qkv_proj(self._first_norm(x))
            qkv = self._products(index, attention.rotate_and_attend(qkv, cos_sin, step), x)
        return self._norm(x)
