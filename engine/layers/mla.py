"""Multi-head latent attention (arXiv 2405.04434): the cache holds one short vector a token.

With the up-projections of keys and values moved to the other side of their products, all heads
attend to the latents themselves, which are keys and values in one:

    cached       [ rotated part of the key | latent ]          one head for all query heads
    query        [ rotated part | its plain part, projected to the latent's width ]
    attended     [ nothing of use | mean latent ]              projected to the head's value
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.attention.base import AttentionOptions
from engine.layers.attention import StepContext
from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from engine.layers.parameter import Weight
from engine.parallel.group import ALONE, Group, Output
from kernels import ops
from kernels.rounded import Activations

_LATENT_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAConfig:
    """The dimensions of latent attention, by the names of the checkpoint's config.json."""

    q_lora_rank: int | None
    """Rank of the queries' latent; None if they have none."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    interleaved: bool
    """The checkpoint's rotated dimensions come in pairs (0, 1), (2, 3) and not in halves."""

    @property
    def cached_dim(self) -> int:
        return self.qk_rope_head_dim + self.kv_lora_rank


class UpProjection(Module):
    """Maps latents to keys and values. It is multiplied from either side, so it is not a
    ``Linear``; quantized weights are dequantized once loaded."""

    def __init__(self, rows: int, rank: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.parts = {"": rows}
        self._rank, self._dtype, self._device = rank, dtype, device
        self.weight = Weight.empty((rows, rank), dtype=dtype, device=device)
        self.quantized: QuantizedWeight | None = None

    def quantize(self, weight: Callable[[Linear], QuantizedWeight]) -> None:
        """weight: the quantized form of the weight."""
        one = Linear(self._rank, self.parts, bias=False, dtype=self._dtype, device=self._device)
        self.quantized = weight(one)

    def children(self) -> Iterator[tuple[str, Module | Weight]]:
        return super().children() if self.quantized is None else self.quantized.children()

    def pack(self) -> None:
        if self.quantized is not None:
            self.weight.data = self.quantized.dequantize()
            self.quantized = None


class LatentAttention(Module):
    reader: ClassVar[None] = None
    """No single layer reads the input: several do."""

    def __init__(
        self,
        layer: int,
        config: MLAConfig,
        hidden_size: int,
        num_heads: int,
        *,
        scale: float,
        bias: bool,
        group: Group = ALONE,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """num_heads: of this rank. group: the ranks among which the heads are divided; each of them
        caches all latents."""
        self.layer = layer
        self.num_heads = num_heads
        self.options = AttentionOptions(scale)
        self._config = config
        qk_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        q_size = {"": num_heads * qk_head_dim}
        if config.q_lora_rank is None:
            self.q_proj = Linear(hidden_size, q_size, bias=False, dtype=dtype, device=device)
        else:
            rank = config.q_lora_rank
            self.q_a_proj = Linear(hidden_size, {"": rank}, bias=bias, dtype=dtype, device=device)
            self.q_a_layernorm = RMSNorm(rank, _LATENT_EPS, dtype=dtype, device=device)
            self.q_b_proj = Linear(rank, q_size, bias=False, dtype=dtype, device=device)
        self.kv_a_proj_with_mqa = Linear(
            hidden_size, {"": config.cached_dim}, bias=bias, dtype=dtype, device=device
        )
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, _LATENT_EPS, dtype=dtype, device=device)
        self.kv_b_proj = UpProjection(
            num_heads * (config.qk_nope_head_dim + config.v_head_dim),
            config.kv_lora_rank,
            dtype=dtype,
            device=device,
        )
        self.o_proj = Linear(
            num_heads * config.v_head_dim,
            {"": hidden_size},
            bias=bias,
            reduces=group,
            dtype=dtype,
            device=device,
        )

    def __call__(self, x: Activations, cos_sin: torch.Tensor, step: StepContext) -> Output:
        """x: [num_tokens, hidden]; cos_sin: [max_positions, qk_rope_head_dim]. Returns [num_wanted,
        hidden]."""
        assert isinstance(x, torch.Tensor), "rounded for nobody"
        config, num_tokens = self._config, len(x)
        rotary_dim, rank = config.qk_rope_head_dim, config.kv_lora_rank
        # [num_heads, nope + v, rank]
        up = self.kv_b_proj.weight.data.view(self.num_heads, -1, rank)
        to_keys, to_values = up.split_with_sizes((config.qk_nope_head_dim, config.v_head_dim), 1)
        q_plain, q_turned = self._queries(x).split_with_sizes(
            (config.qk_nope_head_dim, rotary_dim), -1
        )
        q = x.new_empty(num_tokens, self.num_heads, config.cached_dim)
        torch.bmm(q_plain.transpose(0, 1), to_keys, out=q[..., rotary_dim:].transpose(0, 1))
        cache, _ = step.kv_cache[self.layer]
        slots, attend = step.of(self.layer)
        scales = self.options.kv_scales
        ops.store_latents(
            q,
            q_turned,
            self.kv_a_proj_with_mqa(x),
            self.kv_a_layernorm.weight.data,
            cache,
            cos_sin,
            step.positions,
            slots,
            eps=self.kv_a_layernorm.eps,
            interleaved=config.interleaved,
            scale=None if scales is None else scales.k,
        )

        attended = attend(q, cache, cache, self.options)[..., rotary_dim:]
        values = x.new_empty(num_tokens, self.num_heads, config.v_head_dim)
        torch.bmm(attended.transpose(0, 1), to_values.transpose(1, 2), out=values.transpose(0, 1))
        return self.o_proj.output(step.kept(values.view(num_tokens, -1)))

    def _queries(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads, qk_nope_head_dim + qk_rope_head_dim]"""
        if self._config.q_lora_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        return q.view(x.shape[0], self.num_heads, -1)
