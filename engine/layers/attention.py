"""Self-attention over the paged cache, and what one step passes through all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from engine.attention.base import KVScales, StepAttention, storing
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from kernels import ops
from kernels.rounded import Activations

KVCache = list[tuple[torch.Tensor, torch.Tensor]]
"""(k_cache, v_cache) of each layer: [num_blocks, block_size, num_kv_heads, head_dim]. One tensor
twice where a layer caches latents."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tokens whose hidden states a step needs: the last layer computes no others, once it has
    stored their keys."""

    index: torch.Tensor
    """[num_wanted] int64, not empty."""
    prepare: Callable[[], StepAttention] | None = None
    """Prepares attention for only these queries, after the other layers had theirs; None: attend
    with all queries and drop the rest."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the layers of one step share."""

    positions: torch.Tensor
    """[num_tokens] int64"""
    slots: torch.Tensor
    """[num_tokens] int64: where each token's key and value go; -1 for padding."""
    attend: StepAttention
    kv_cache: KVCache
    taps: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """The input of the layers with these indices is copied here: [num_tokens, hidden], all with the
    same strides."""
    adapted: bool = False
    """Some tokens have an adapter, which the linear layers apply."""
    by_layer: Mapping[int, tuple[torch.Tensor, StepAttention]] = field(default_factory=dict)
    """``slots`` and ``attend`` of the layers that are not in the first layer group."""
    wanted: Wanted | None = None
    """None: all tokens."""
    is_eager: bool = False
    """Not for a CUDA graph: the GPU may have to wait for the host."""
    one_kernel: bool = False
    """All layers as one kernel, if the model has one: the runner measures where that is faster."""

    def kept(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of ``x`` that belong to wanted tokens. x: [num_tokens, ...]."""
        return x if self.wanted is None else x.index_select(0, self.wanted.index)

    def of(self, layer: int) -> tuple[torch.Tensor, StepAttention]:
        """The ``slots`` and ``attend`` that a layer uses."""
        return self.by_layer.get(layer) or (self.slots, self.attend)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """One layer's self-attention."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bias: bool = False
    """Whether the query, key and value projections have one."""
    output_bias: bool = False
    scale: float
    window: int | None = None
    softcap: float | None = None
    qk_norm: type[RMSNorm] | None = None
    """The norm applied to each head of queries and keys before the rotation."""
    norm_eps: float = 1e-6
    fused_checkpoint: bool = False
    """The checkpoint holds ``qkv_proj`` as one tensor."""


class SelfAttention(Module):
    """Fused QKV, rotary embedding, grouped-query attention, output projection."""

    def __init__(
        self, layer: int, config: AttentionConfig, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layer = layer
        self.kv_scales: KVScales | None = None
        """Scales of a cache in FP8; None: the cache has the layer's dtype."""
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.scale = config.scale
        self.window = config.window
        self.softcap = config.softcap
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = Linear(
            config.hidden_size,
            {"": sum(parts.values())} if config.fused_checkpoint else parts,
            bias=config.bias,
            dtype=dtype,
            device=device,
        )
        self.o_proj = Linear(
            q_size, {"": config.hidden_size}, bias=config.output_bias, dtype=dtype, device=device
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm is not None:
            self.q_norm = config.qk_norm(
                config.head_dim, config.norm_eps, dtype=dtype, device=device
            )
            self.k_norm = config.qk_norm(
                config.head_dim, config.norm_eps, dtype=dtype, device=device
            )

    @property
    def is_plain(self) -> bool:
        """Whether it is causal attention over all tokens, with nothing but a rotation of queries
        and keys."""
        return self.window is None and self.softcap is None and self.q_norm is None

    def _may_store_late(self, step: StepContext) -> bool:
        """Nothing but the rotation lies between the projection and attention with all tokens."""
        plain = self.q_norm is None and self.softcap is None and self.kv_scales is None
        return plain and (step.wanted is None or step.wanted.prepare is None)

    @property
    def reader(self) -> Linear:
        """The only layer that reads the input."""
        return self.qkv_proj

    def __call__(self, x: Activations, cos_sin: torch.Tensor, step: StepContext) -> torch.Tensor:
        """x: [num_tokens, hidden]; cos_sin: see ``ops.rope_and_cache``. Returns [num_wanted,
        hidden]."""
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        q, k, v = qkv.split_with_sizes((self.num_heads, self.num_kv_heads, self.num_kv_heads), 1)
        k_cache, v_cache = step.kv_cache[self.layer]
        slots, attend = step.of(self.layer)
        late = storing(attend) if self._may_store_late(step) else None
        if late is not None and late.stores(cos_sin):
            attended = late.store_and_attend(
                *(q, k, v, cos_sin, k_cache, v_cache, self.scale), window=self.window
            )
            return self.o_proj(step.kept(attended.view(len(q), -1)))
        scales = self.kv_scales
        k_scale, v_scale = (None, None) if scales is None else (scales.k, scales.v)
        store = partial(
            ops.rope_and_cache,
            *(q, k, v, k_cache, v_cache, cos_sin, step.positions, slots),
            k_scale=k_scale,
            v_scale=v_scale,
        )
        if self.q_norm is None or self.k_norm is None:
            store()
        else:
            q_norm, k_norm = self.q_norm.weight.data, self.k_norm.weight.data
            store(q_norm=q_norm, k_norm=k_norm, eps=self.q_norm.eps)
        return self.o_proj(self.attend(attend, q, step))

    def attend(self, attend: StepAttention, q: torch.Tensor, step: StepContext) -> torch.Tensor:
        """With the rotated queries ``q`` of all tokens; their keys are in the cache already.

        q: [num_tokens, num_heads, head_dim]. Returns [num_wanted, num_heads * head_dim].
        """
        prepare = None if step.wanted is None else step.wanted.prepare
        if prepare is not None:
            q, attend = step.kept(q), prepare()
        attended = attend(
            q,
            *step.kv_cache[self.layer],
            self.scale,
            window=self.window,
            softcap=self.softcap,
            kv_scales=self.kv_scales,
        )
        attended = attended.view(q.shape[0], -1)
        return step.kept(attended) if prepare is None else attended
