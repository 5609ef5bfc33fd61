"""Self-attention over the paged cache, and what one step passes through all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import NamedTuple

import torch

from engine.attention.base import AttentionOptions, StepAttention, fused_rotation
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from engine.layers.parameter import Weight
from engine.layers.recurrent import StateStep
from engine.layers.vision import Sight
from engine.parallel.group import ALONE, Group, Output
from kernels import ops
from kernels.rounded import Activations

KVCache = list[tuple[torch.Tensor, torch.Tensor]]
"""(k_cache, v_cache) of each layer: [num_blocks, block_size, num_kv_heads, head_dim]. One tensor
twice where a layer caches latents."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tokens whose final hidden states a step needs, as it samples after them. In the last
    layer the keys of all tokens are stored, but nothing else is computed for the other tokens."""

    index: torch.Tensor
    """[num_wanted] int64, not empty."""
    prepare: Callable[[], StepAttention] | None = None
    """Prepares attention of only these queries; called by the last layer. None: the last layer
    attends with all queries, too, and drops the results of the others."""


class GroupStep(NamedTuple):
    """A step as the layers of one group see it (``engine.cache.groups``)."""

    slots: torch.Tensor
    """[num_tokens] int64: where each token's key and value go; -1 for padding."""
    attend: StepAttention


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the runner passes to the layers: the same for all of them."""

    positions: torch.Tensor
    """[num_tokens] int64"""
    groups: Sequence[GroupStep]
    """By layer group."""
    kv_cache: KVCache
    aux_hidden_states: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """Where to copy the input of some layers, by layer index, for a draft network: [num_tokens,
    hidden] each, all with the same strides."""
    adapted: bool = False
    """Some tokens have a LoRA adapter, which the linear layers apply."""
    group_of: Sequence[int] = ()
    """The group of each layer; not needed where there is only one."""
    wanted: Wanted | None = None
    """None: the hidden states of all tokens are needed."""
    states: StateStep | None = None
    """For layers that keep a state; None where the model has none."""
    sight: Sight | None = None
    """The pictures of its requests; None where none has any to do with the step. Only the plain
    executor, and others that run the model's own layers, serve steps with some."""

    def kept(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of ``x`` ([num_tokens, ...]) that belong to wanted tokens: [num_wanted, ...]."""
        return x if self.wanted is None else x.index_select(0, self.wanted.index)

    def of(self, layer: int) -> GroupStep:
        """What the layer with this index sees."""
        return self.groups[0 if len(self.groups) == 1 else self.group_of[layer]]


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries are multiplied by ``1 + beta * log(1 + floor(position / every))``, so that attention
    stays as sharp over many keys as over few."""

    beta: float
    every: float

    @lru_cache(maxsize=2)  # noqa: B019  (one table for all layers)
    def factors(self, num_positions: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """[num_positions, 1, 1]"""
        positions = torch.arange(num_positions, dtype=torch.float32)
        factors = 1 + self.beta * torch.log1p(torch.floor(positions / self.every))
        return factors.to(device, dtype)[:, None, None]


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
    has_sinks: bool = False
    qk_norm: type[RMSNorm] | None = None
    """The norm applied to each head of queries and keys before the rotation."""
    norm_eps: float = 1e-6
    growth: QueryGrowth | None = None
    fused_checkpoint: bool = False
    """The checkpoint holds ``qkv_proj`` as one tensor."""
    group: Group = ALONE
    """The ranks among which the heads are divided; the numbers of heads are this rank's."""


class SelfAttention(Module):
    """Fused QKV, rotary embedding, grouped-query attention, output projection."""

    def __init__(
        self, layer: int, config: AttentionConfig, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layer = layer
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.growth = config.growth
        self.options = AttentionOptions(config.scale, config.window, config.softcap)
        if config.has_sinks:
            sinks = torch.empty(config.num_heads, dtype=torch.float32, device=device)
            self.sinks = Weight(sinks)
            self.options = replace(self.options, sinks=sinks)
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = Linear(
            config.hidden_size,
            {"": sum(parts.values())} if config.fused_checkpoint else parts,
            bias=config.bias,
            sections=tuple(parts.values()) if config.fused_checkpoint else (),
            dtype=dtype,
            device=device,
        )
        self.o_proj = Linear(
            q_size,
            {"": config.hidden_size},
            bias=config.output_bias,
            reduces=config.group,
            dtype=dtype,
            device=device,
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
        """Whether it is causal attention over all tokens: no window, soft cap, sinks, or norm of
        queries and keys."""
        how = self.options
        is_plain = how.window is None and how.softcap is None and how.sinks is None
        return is_plain and self.q_norm is None

    def _may_fuse_rotation(self, step: StepContext) -> bool:
        """Whether the attention kernel may rotate queries and keys and store the keys and values
        itself (``FusedRotationAttention``): nothing else comes between projection and attention."""
        how = self.options
        plain = self.q_norm is None and how.softcap is None and how.kv_scales is None
        # Such kernels look the rotation up at the positions in the cache.
        plain &= step.sight is None or step.sight.rotary is None
        return plain and (step.wanted is None or step.wanted.prepare is None)

    @property
    def reader(self) -> Linear:
        """The only layer that reads the input, so the norm before may write what that needs."""
        return self.qkv_proj

    def __call__(self, x: Activations, cos_sin: torch.Tensor, step: StepContext) -> Output:
        """x: [num_tokens, hidden]; cos_sin: see ``ops.rope_and_cache``. Returns [num_wanted,
        hidden]."""
        return self.o_proj.output(self.attended(self.qkv_proj(x), cos_sin, step))

    def attended(self, qkv: torch.Tensor, cos_sin: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Everything between the projections: [num_wanted, num_heads * head_dim]. qkv: [num_tokens,
        (num_heads + 2 * num_kv_heads) * head_dim]."""
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        q, k, v = heads.split_with_sizes((self.num_heads, self.num_kv_heads, self.num_kv_heads), 1)
        if self.growth is not None:
            factors = self.growth.factors(len(cos_sin), q.dtype, q.device)
            q.mul_(factors.index_select(0, step.positions))
        k_cache, v_cache = step.kv_cache[self.layer]
        slots, attend = step.of(self.layer)
        fused = fused_rotation(attend) if self._may_fuse_rotation(step) else None
        if fused is not None and fused.can_store(cos_sin):
            attended = fused.store_and_attend(q, k, v, cos_sin, k_cache, v_cache, self.options)
            return step.kept(attended.view(len(q), -1))
        scales = self.options.kv_scales
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
        return self.attend(attend, q, step)

    def attend(self, attend: StepAttention, q: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Attend with the rotated queries ``q`` of all tokens; their keys are in the cache already.

        q: [num_tokens, num_heads, head_dim]. Returns [num_wanted, num_heads * head_dim].
        """
        prepare = None if step.wanted is None else step.wanted.prepare
        if prepare is not None:
            q, attend = step.kept(q), prepare()
        attended = attend(q, *step.kv_cache[self.layer], self.options)
        attended = attended.view(q.shape[0], -1)
        return step.kept(attended) if prepare is None else attended
