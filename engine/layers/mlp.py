"""The gated feed-forward block: ``down(act(gate(x)) * up(x))`` (arXiv 2002.05202)."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.parallel.group import ALONE, Group, Output
from kernels import ops
from kernels.rounded import Activations

ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
"""Supported activations, by transformers' names."""


class FeedForward(Protocol):
    """What a layer computes of each token by itself."""

    @property
    def reader(self) -> Linear | None:
        """The only linear layer that reads the input; None if there are several, or other ones."""
        ...

    def __call__(self, x: Activations) -> Output:
        """[num_tokens, hidden] to the same shape."""


class GatedMLP(Module):
    """A gated feed-forward block: [num_tokens, hidden] to the same shape."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool,
        activation: str = "silu",
        fused_checkpoint: bool = False,
        reduces: Group = ALONE,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """intermediate_size: of this rank. fused_checkpoint: the checkpoint holds ``gate_up_proj``
        as one tensor. reduces: the ranks that share the block; none if the caller adds up what they
        return."""
        assert activation in ACTIVATIONS, activation
        self.activation = activation
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = Linear(
            hidden_size,
            {"": 2 * intermediate_size} if fused_checkpoint else parts,
            bias=bias,
            sections=tuple(parts.values()) if fused_checkpoint else (),
            dtype=dtype,
            device=device,
        )
        self.down_proj = Linear(
            intermediate_size,
            {"": hidden_size},
            bias=bias,
            reduces=reduces,
            dtype=dtype,
            device=device,
        )

    @property
    def reader(self) -> Linear:
        return self.gate_up_proj

    def __call__(self, x: Activations) -> Output:
        if self.activation == "silu":
            return self.down_proj.output(self.gate_up_proj.gated(x, reader=self.down_proj))
        return self.down_proj.output(ops.gelu_tanh_mul(self.gate_up_proj(x)))
