"""Layers that keep one state for a sequence in place of keys and values: what they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch

from engine.layers.module import Module
from engine.layers.parameter import Weight

States = tuple[torch.Tensor, ...]
"""The tensors of a layer's state."""


class StateTensor(NamedTuple):
    """One tensor of a layer's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    """None: the model's."""


class Recurrence(Protocol):
    """The config of one kind of layer with a state."""

    @property
    def state(self) -> tuple[StateTensor, ...]:
        """What each layer keeps for a sequence."""


class Run(NamedTuple):
    """Consecutive tokens of one sequence, between two states."""

    start: int
    stop: int
    source: int | None
    """The slot of the state before them; None: the sequence begins here."""
    target: int
    """The slot for the state after them."""


@dataclass(frozen=True, slots=True)
class StateStep:
    """A step as layers with a state see it: sequences of one token each, all at once, and then runs
    of more tokens, one by one."""

    layers: Sequence[States]
    """The states of each such layer: [num_slots, *shape] each."""
    slots: torch.Tensor
    """[num_single] int64: where the states of sequences with one token are."""
    begins: torch.Tensor
    """[num_single] bool: which of these have no token before."""
    single: torch.Tensor | None = None
    """[num_single] int64: their tokens; None: the step has no others, and they are in order."""
    runs: Sequence[Run] = ()


class Convolution(Module):
    """The weight of a causal convolution of each channel by itself."""

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.weight = Weight(torch.empty(channels, 1, kernel_size, dtype=dtype, device=device))
        self.bias: Weight | None = None
        if bias:
            self.bias = Weight(torch.empty(channels, dtype=dtype, device=device))

    def operands(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[channels, kernel_size] and [channels]."""
        return self.weight.data.squeeze(1), None if self.bias is None else self.bias.data


class Recurrent(Module):
    """A layer with a state, which divides a step into what subclasses compute."""

    reader: ClassVar[None] = None
    """No single layer reads the input: several do."""
    place: int
    """Its number among the layers with a state."""

    @abstractmethod
    def one_token(self, inputs: States, states: States) -> tuple[torch.Tensor, States]:
        """One token of each sequence: outputs [batch, ...] and the states after it. inputs, states:
        [batch, ...] each."""

    @abstractmethod
    def many_tokens(self, inputs: States, states: States) -> tuple[torch.Tensor, States]:
        """Tokens of one sequence: outputs [num_tokens, ...] and the states after the last. inputs:
        [num_tokens, ...] each; states: without a batch."""

    def over_time(self, inputs: States, step: StateStep) -> torch.Tensor:
        """The outputs of all tokens of a step, whose states are read and written. inputs:
        [num_tokens, ...] each."""
        layer = step.layers[self.place]
        if step.single is None:
            return self._singles(inputs, layer, step)
        num_tokens, out = len(inputs[0]), None
        if len(step.single):
            chosen = tuple(x.index_select(0, step.single) for x in inputs)
            found = self._singles(chosen, layer, step)
            out = found.new_empty(num_tokens, *found.shape[1:])
            out.index_copy_(0, step.single, found)
        for run in step.runs:
            before = tuple(
                torch.zeros_like(state[0]) if run.source is None else state[run.source]
                for state in layer
            )
            some = tuple(x[run.start : run.stop] for x in inputs)
            found, after = self.many_tokens(some, before)
            for state, new in zip(layer, after, strict=True):
                state[run.target].copy_(new)
            if out is None:
                out = found.new_empty(num_tokens, *found.shape[1:])
            out[run.start : run.stop] = found
        assert out is not None, "a step without tokens"
        return out

    def _singles(self, inputs: States, layer: States, step: StateStep) -> torch.Tensor:
        before = tuple(
            state.index_select(0, step.slots).masked_fill_(_like(step.begins, state), 0)
            for state in layer
        )
        out, after = self.one_token(inputs, before)
        for state, new in zip(layer, after, strict=True):
            state.index_copy_(0, step.slots, new.to(state.dtype))
        return out


def _like(mask: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return mask.view(-1, *[1] * (state.dim() - 1))
