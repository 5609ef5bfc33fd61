"""``persistent_decoder`` in plain torch, which its kernel is tested against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional as F

from kernels import reference
from kernels.persistent_decoder import LayerWeights


class ReferenceDecoder:
    """Computes in float32, whatever the weights' dtype. Only the residual after each addition, and
    keys and values in the cache, are rounded to that dtype."""

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        head_eps: float,
        scale: float,
    ) -> None:
        """See ``persistent_decoder.PersistentDecoder``."""
        self._layers = layers
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._eps = eps
        self._head_eps = head_eps
        self._scale = scale

    def refused(self) -> str | None:
        """None: it runs anywhere."""
        return None

    def __call__(
        self,
        x: torch.Tensor,
        kv_cache: Sequence[tuple[torch.Tensor, torch.Tensor]],
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        aux_states: Mapping[int, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """As the kernel, and for more tokens, too. x: [tokens, hidden]."""
        num_queries = len(x) // len(seq_lens)
        cu_queries = num_queries * torch.arange(len(seq_lens) + 1, device=x.device)
        for index, (layer, caches) in enumerate(zip(self._layers, kv_cache, strict=True)):
            if aux_states and index in aux_states:
                aux_states[index].copy_(x)
            q = self._rotated(layer, x, caches, cos_sin, positions, slots)
            attended = reference.paged_attention(
                q, *caches, block_table, seq_lens, cu_queries, scale=self._scale
            )
            x = _added(x, attended.flatten(1), layer.output)
            gate_up = F.linear(self._normed(x, layer.attended_norm), layer.gate_up.float())
            x = _added(x, reference.silu_mul(gate_up), layer.down)
        return x

    def _rotated(
        self,
        layer: LayerWeights,
        x: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """The queries: [tokens, num_heads, head_dim]. Keys and values go to their slots."""
        bias = None if layer.qkv_bias is None else layer.qkv_bias.float()
        qkv = F.linear(self._normed(x, layer.input_norm), layer.qkv.float(), bias)
        num_kv_heads = self._num_kv_heads
        q, k, v = qkv.view(len(x), -1, self._head_dim).split_with_sizes(
            (self._num_heads, num_kv_heads, num_kv_heads), 1
        )
        new_k, new_v = qkv.new_empty(2, len(x), 1, num_kv_heads, self._head_dim).unbind()
        reference.rope_and_cache(
            *(q, k, v, new_k, new_v, cos_sin, positions, torch.arange(len(x), device=x.device)),
            q_norm=None if layer.q_norm is None else layer.q_norm.float(),
            k_norm=None if layer.k_norm is None else layer.k_norm.float(),
            eps=self._head_eps,
        )
        kept = slots >= 0
        for cache, new in zip(caches, (new_k, new_v), strict=True):
            reference.store_heads(cache, slots[kept], new[kept, 0].to(cache.dtype), None)
        return q

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return reference.rms_norm(x.float(), weight.float(), self._eps)


def _added(x: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    added: torch.Tensor = x.float() + F.linear(inputs, weight.float())
    return added.to(x.dtype)
