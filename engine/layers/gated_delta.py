"""Gated delta networks (arXiv 2412.06464): a state that each token decays, corrects and reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from engine.layers.attention import StepContext
from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from engine.layers.parameter import Weight
from engine.layers.recurrent import Convolution, Recurrent, States, StateTensor
from engine.parallel.group import Output
from kernels import recurrence
from kernels.rounded import Activations

_L2_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaConfig:
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    """Of a head."""
    value_dim: int
    """Of a head."""
    kernel_size: int
    norm_eps: float
    interleaved: bool = False
    """The checkpoint's projections hold what belongs to a key head side by side."""

    @property
    def keys(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def state(self) -> tuple[StateTensor, ...]:
        matrix = self.num_value_heads, self.key_dim, self.value_dim
        inputs = self.channels, self.kernel_size - 1
        return StateTensor(inputs), StateTensor(matrix, torch.float32)


class GatedDelta(Recurrent):
    def __init__(
        self,
        place: int,
        config: GatedDeltaConfig,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.place, self._config = place, config
        values, heads = config.values, config.num_value_heads
        wide = {"in_proj_qkv": config.channels, "in_proj_z": values}
        narrow = {"in_proj_b": heads, "in_proj_a": heads}
        if config.interleaved:
            wide, narrow = {"": sum(wide.values())}, {"": sum(narrow.values())}
        self.in_proj_qkvz = Linear(hidden_size, wide, bias=False, dtype=dtype, device=device)
        self.in_proj_ba = Linear(hidden_size, narrow, bias=False, dtype=dtype, device=device)
        self.conv1d = Convolution(config.channels, config.kernel_size, dtype=dtype, device=device)
        self.A_log = Weight(torch.empty(heads, dtype=torch.float32, device=device))
        self.dt_bias = Weight(torch.empty(heads, dtype=torch.float32, device=device))
        self.norm = RMSNorm(config.value_dim, config.norm_eps, dtype=dtype, device=device)
        self.out_proj = Linear(values, {"": hidden_size}, bias=False, dtype=dtype, device=device)

    def __call__(self, x: Activations, cos_sin: torch.Tensor, step: StepContext) -> Output:
        """As ``SelfAttention``, without a rotation."""
        assert isinstance(x, torch.Tensor), "rounded for nobody"
        assert step.states is not None, "the step has no states"
        qkv, z, b, a = self._projected(x)
        decay = -self.A_log.data.exp() * F.softplus(a.float() + self.dt_bias.data)
        out = step.kept(self.over_time((qkv, decay, b.sigmoid().float()), step.states))
        z = step.kept(z).view(-1, self._config.value_dim)
        normed = self.norm(out.to(x.dtype).view(z.shape))
        gated = normed.float().mul_(F.silu(z.float())).to(x.dtype)
        return self.out_proj.output(gated.view(len(out), -1))

    def _projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values side by side [num_tokens, channels], the gate [num_tokens,
        values], beta and the time steps before their functions [num_tokens, num_value_heads]."""
        config, heads = self._config, self._config.num_key_heads
        wide, narrow = self.in_proj_qkvz(x), self.in_proj_ba(x)
        if not config.interleaved:
            qkv, z = wide.split_with_sizes((config.channels, config.values), -1)
            b, a = narrow.chunk(2, -1)
            return qkv, z.contiguous(), b, a
        each = config.values // heads
        parts = wide.view(len(x), heads, -1).split_with_sizes(
            (config.key_dim, config.key_dim, each, each), -1
        )
        q, k, v, z = (part.reshape(len(x), -1) for part in parts)
        b, a = (part.reshape(len(x), -1) for part in narrow.view(len(x), heads, -1).chunk(2, -1))
        return torch.cat((q, k, v), -1), z, b, a

    def one_token(self, inputs: States, states: States) -> tuple[torch.Tensor, States]:
        qkv, decay, beta = inputs
        inputs_before, matrix = states
        mixed, inputs_after = recurrence.convolve_step(qkv, inputs_before, *self.conv1d.operands())
        out, matrix = recurrence.step(*self._heads(mixed), decay, matrix, beta)
        return out, (inputs_after, matrix)

    def many_tokens(self, inputs: States, states: States) -> tuple[torch.Tensor, States]:
        qkv, decay, beta = inputs
        inputs_before, matrix = states
        mixed, inputs_after = recurrence.convolve(qkv, inputs_before, *self.conv1d.operands())
        out, matrix = recurrence.scan(*self._heads(mixed), decay, matrix, beta)
        return out, (inputs_after, matrix)

    def _heads(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values in float32, [n, num_value_heads, ...] each. mixed: [n, channels]
        after the convolution."""
        config = self._config
        q, k, v = F.silu(mixed).split_with_sizes((config.keys, config.keys, config.values), -1)
        times = config.num_value_heads // config.num_key_heads

        def unit(x: torch.Tensor) -> torch.Tensor:
            x = x.reshape(len(x), -1, config.key_dim).float()
            x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _L2_EPS)
            return x.repeat_interleave(times, 1)

        values = v.reshape(len(v), -1, config.value_dim).float()
        return unit(q) * config.key_dim**-0.5, unit(k), values
