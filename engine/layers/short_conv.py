"""Gated short convolutions (LFM2, arXiv 2511.23404): each token sees the few before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.layers.attention import StepContext
from engine.layers.linear import Linear
from engine.layers.recurrent import Convolution, Recurrent, States, StateTensor
from engine.parallel.group import Output
from kernels import recurrence
from kernels.rounded import Activations


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    channels: int
    kernel_size: int
    bias: bool

    @property
    def state(self) -> tuple[StateTensor, ...]:
        return (StateTensor((self.channels, self.kernel_size - 1)),)


class ShortConv(Recurrent):
    def __init__(
        self, place: int, config: ShortConvConfig, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.place = place
        width, bias = config.channels, config.bias
        self.in_proj = Linear(width, {"": 3 * width}, bias=bias, dtype=dtype, device=device)
        self.conv = Convolution(width, config.kernel_size, bias=bias, dtype=dtype, device=device)
        self.out_proj = Linear(width, {"": width}, bias=bias, dtype=dtype, device=device)

    def __call__(self, x: Activations, cos_sin: torch.Tensor, step: StepContext) -> Output:
        """As ``SelfAttention``, without a rotation."""
        assert isinstance(x, torch.Tensor), "rounded for nobody"
        assert step.states is not None, "the step has no states"
        before, after, inner = self.in_proj(x).chunk(3, -1)
        mixed = self.over_time((before * inner,), step.states)
        return self.out_proj.output(step.kept(after) * step.kept(mixed))

    def one_token(self, inputs: States, states: States) -> tuple[torch.Tensor, States]:
        (x,), (before,) = inputs, states
        out, after = recurrence.convolve_step(x, before, *self.conv.operands())
        return out, (after,)

    def many_tokens(self, inputs: States, states: States) -> tuple[torch.Tensor, States]:
        (x,), (before,) = inputs, states
        out, after = recurrence.convolve(x, before, *self.conv.operands())
        return out, (after,)
