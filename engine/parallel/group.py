"""The ranks of an engine and their collectives, as layers and start-up see them.

Each rank is a process with a device of its own. All ranks run the same steps in the same order, so
that a collective needs no name: the n-th of one rank meets the n-th of every other.

Words for what a tensor holds on several ranks: *replicated*, the same on each; *sharded*, of each
rank its own part; *partial*, on each rank a summand. What is sharded never leaves a block of a
layer. What is partial leaves it as a ``Partial``, because the sum is best taken together with what
follows; every other tensor is replicated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels import ops


class Group:
    """The ranks that run each step together. This class is a rank alone; its collectives do
    nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def output(self, x: torch.Tensor) -> Output:
        """What a block returns whose ranks have the summands ``x``."""
        return x if self.size == 1 else Partial(x, self)

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """``ops.rms_norm`` of the sum of all ranks' ``x`` and of ``residual``, which is stored in
        ``residual``. x may be overwritten."""
        return ops.rms_norm(self.all_reduce(x), weight, eps, residual)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Partial to replicated: the sum over all ranks, bitwise the same on each. ``x`` may be
        overwritten. x: contiguous."""
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Sharded to replicated: [size, *x.shape], by rank. x: contiguous."""
        return x[None]

    def least(self, value: float) -> float:
        """The least of the values that all ranks pass: they must not decide differently where
        they measured differently."""
        return value

    def abort(self) -> None:
        """End the collectives that run and all later ones with an error, from any thread: a rank
        is gone that they would wait for."""


class Partial(NamedTuple):
    """A tensor of which each rank of the group has a summand."""

    summand: torch.Tensor
    group: Group


Output = torch.Tensor | Partial
"""What a block returns."""

ALONE = Group()


def whole(x: Output) -> torch.Tensor:
    """The sum of all ranks."""
    return x if isinstance(x, torch.Tensor) else x.group.all_reduce(x.summand)
