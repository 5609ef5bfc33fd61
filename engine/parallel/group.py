"""The ranks of an engine and their collectives, as layers and start-up see them.

Each rank is a process with a device of its own. All ranks run the same steps in the same order, so
that a collective needs no name: the n-th of one rank meets the n-th of every other.

Words for what a tensor holds on several ranks: *replicated*, the same on each; *sharded*, of each
rank its own part; *partial*, on each rank a summand. Blocks of a layer take and return replicated
tensors. What is sharded or partial between them stays inside of a block, which ends with
``all_reduce``.
"""

from __future__ import annotations

import torch


class Group:
    """The ranks that run each step together. This class is a rank alone; its collectives do
    nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

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


ALONE = Group()
