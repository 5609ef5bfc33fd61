"""Decoder layers on a GPU as one kernel behind each attention, for decode steps of 17 to 64 tokens.

So many tokens fill a GPU's tensor cores no better than its memory: between kernels it loads no
weights, and a layer has six of them behind its attention. The kernel rounds where the layers do,
but sums in another order, and scales normed rows behind the product.
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
    batches = range(MIN_TOKENS, MAX_TOKENS + 1)
    """Tokens of a step, each of its own sequence."""

    def __init__(
        self,
        attentions: Sequence[SelfAttention],
        products: LayerProducts,
        norms: tuple[RMSNorm, ...],
    ) -> None:
        """norms: before the first layer, and behind the last."""
        self._attentions = attentions
        self._products = products
        self._first_norm, self._norm = norms

    @classmethod
    def of(
        cls, layers: Sequence[DecoderLayer], norm: RMSNorm, cos_sin: torch.Tensor
    ) -> JoinedProducts | None:
        """The packed layers, of which each computes what ``LlamaDecoderLayer`` does, with
        ``cos_sin``; None where the kernel does not serve them.

        norm: what the hidden states behind them go through.
        """
        weights = [found for layer in layers if (found := layer_weights(layer)) is not None]
        attentions = [
            attention for layer in layers if isinstance(attention := layer.self_attn, SelfAttention)
        ]
        is_built = not cos_sin.is_cuda or cuda.available()
        if not is_built or len(weights) < len(layers) or refusal(weights) is not None:
            return None
        first_norm = layers[0].input_layernorm
        products = LayerProducts(weights, eps=first_norm.eps)
        why = products.refused()
        if why is not None:
            logger.warning("No one kernel for the products of a layer: this GPU %s", why)
            return None
        return cls(attentions, products, (first_norm, norm))

    def serves(self, step: StepContext) -> bool:
        """Whether the runner wants such kernels in this step, and they can be."""
        if not step.one_kernel or step.adapted or step.taps or step.wanted:
            return False
        return len(step.positions) in self.batches

    def __call__(self, x: torch.Tensor, cos_sin: torch.Tensor, step: StepContext) -> torch.Tensor:
        """x: [tokens, hidden], the embeddings, which are overwritten. Returns the normed hidden
        states: of that shape."""
        qkv: torch.Tensor | None = self._attentions[0].qkv_proj(self._first_norm(x))
        for index, attention in enumerate(self._attentions):
            assert qkv is not None
            qkv = self._products(index, attention.rotate_and_attend(qkv, cos_sin, step), x)
        return self._norm(x)
