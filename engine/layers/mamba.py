"""Mamba 2 (arXiv 2405.21060): a state that each token decays, adds to and reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from engine.layers.attention import StepContext
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.parameter import Weight
from engine.layers.recurrent import Convolution, Recurrent, States, StateTensor
from engine.parallel.group import Output
from kernels import recurrence
from kernels.rounded import Activations


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    num_heads: int
    head_dim: int
    num_groups: int
    """Each of which has keys and queries that its heads share."""
    state_dim: int
    kernel_size: int
    conv_bias: bool
    bias: bool
    """Of the projections."""
    norm_eps: float

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: values, keys and queries."""
        return self.width + 2 * self.num_groups * self.state_dim

    @property
    def state(self) -> tuple[StateTensor, ...]:
        matrix = self.num_heads, self.state_dim, self.head_dim
        inputs = self.channels, self.kernel_size - 1
        return StateTensor(inputs), StateTensor(matrix, torch.float32)


class GatedNorm(Module):
    """The RMS norm, by groups of features, of what a gate lets through."""

    def __init__(
        self, width: int, num_groups: int, eps: float, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = Weight(torch.empty(width, dtype=dtype, device=device))
        self._num_groups, self._eps = num_groups, eps

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x: [num_tokens, width] float32; gate like it, of the model's dtype."""
        x = (x * F.silu(gate.float())).view(len(x), self._num_groups, -1)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps)
        return x.view(gate.shape).to(gate.dtype) * self.weight.data


class Mamba(Recurrent):
    def __init__(
        self,
        place: int,
        config: MambaConfig,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.place, self._config = place, config
        width, heads = config.width, config.num_heads
        self._sizes = width, config.channels, heads
        self.in_proj = Linear(
            hidden_size, {"": sum(self._sizes)}, bias=config.bias, dtype=dtype, device=device
        )
        self.conv1d = Convolution(
            config.channels, config.kernel_size, bias=config.conv_bias, dtype=dtype, device=device
        )
        self.A_log, self.dt_bias, self.D = (
            Weight(torch.empty(heads, dtype=torch.float32, device=device)) for _ in range(3)
        )
        self.norm = GatedNorm(width, config.num_groups, config.norm_eps, dtype=dtype, device=device)
        self.out_proj = Linear(
            width, {"": hidden_size}, bias=config.bias, dtype=dtype, device=device
        )

    def __call__(self, x: Activations, cos_sin: torch.Tensor, step: StepContext) -> Output:
        """As ``SelfAttention``, without a rotation."""
        assert isinstance(x, torch.Tensor), "rounded for nobody"
        assert step.states is not None, "the step has no states"
        gate, mixed, times = self.in_proj(x).split_with_sizes(self._sizes, -1)
        times = F.softplus(times.float() + self.dt_bias.data)
        out = step.kept(self.over_time((mixed, times), step.states))
        return self.out_proj.output(self.norm(out.flatten(1), step.kept(gate)))

    def one_token(self, inputs: States, states: States) -> tuple[torch.Tensor, States]:
        (mixed, times), (before, matrix) = inputs, states
        mixed, after = recurrence.convolve_step(mixed, before, *self.conv1d.operands())
        q, k, v = self._heads(mixed)
        out, matrix = recurrence.step(q, k, v * times[..., None], self._decay(times), matrix)
        return out + v * self.D.data[:, None], (after, matrix)

    def many_tokens(self, inputs: States, states: States) -> tuple[torch.Tensor, States]:
        (mixed, times), (before, matrix) = inputs, states
        mixed, after = recurrence.convolve(mixed, before, *self.conv1d.operands())
        q, k, v = self._heads(mixed)
        out, matrix = recurrence.scan(q, k, v * times[..., None], self._decay(times), matrix)
        return out + v * self.D.data[:, None], (after, matrix)

    def _decay(self, times: torch.Tensor) -> torch.Tensor:
        return -self.A_log.data.exp() * times

    def _heads(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values in float32, [n, num_heads, ...] each. mixed: [n, channels] after
        the convolution."""
        config = self._config
        shared = config.num_groups * config.state_dim
        v, k, q = F.silu(mixed).float().split_with_sizes((config.width, shared, shared), -1)
        times = config.num_heads // config.num_groups

        def of_heads(x: torch.Tensor) -> torch.Tensor:
            return x.reshape(len(x), config.num_groups, -1).repeat_interleave(times, 1)

        return of_heads(q), of_heads(k), v.reshape(len(v), config.num_heads, -1)
