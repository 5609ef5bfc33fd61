"""``layer_products`` in plain torch, which its kernel is tested against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from kernels import reference
from kernels.persistent_decoder import LayerWeights


class ReferenceProducts:
    """Computes in float32, whatever the weights' dtype. Only the residual after each addition, and
    the result, are rounded to that dtype."""

    def __init__(self, layers: Sequence[LayerWeights], *, eps: float) -> None:
        """See ``layer_products.LayerProducts``."""
        self._layers = layers
        self._eps = eps

    def refused(self) -> str | None:
        """None: it runs anywhere."""
        return None

    def __call__(
        self, layer: int, attended: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor | None:
        """As the kernel, and for any number of tokens."""
        own = self._layers[layer]
        residual.copy_(residual.float() + _product(attended, own.output))
        gate_up = _product(self._normed(residual, own.attended_norm), own.gate_up)
        residual.copy_(residual.float() + _product(reference.silu_mul(gate_up), own.down))
        if layer + 1 == len(self._layers):
            return None
        following = self._layers[layer + 1]
        normed = self._normed(residual, following.input_norm)
        bias = None if following.qkv_bias is None else following.qkv_bias.float()
        return F.linear(normed, following.qkv.float(), bias).to(residual.dtype)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return reference.rms_norm(x.float(), weight.float(), self._eps)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x.float(), weight.float())
