"""The stages of a model: ranges of its layers, each on ranks of its own.

The first stage embeds tokens; each hands on what its last layer leaves; the last one has the head,
and sends what it samples back to the first, which embeds it in a later step. Rank 0 is in the last
stage: so what the core collects is in its own process.

    ranks        tp … 2 tp - 1 ──▶ 2 tp … 3 tp - 1 ──▶ …  ──▶ 0 … tp - 1
    stage        0                 1                          count - 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.parallel.group import ALONE, Group


class Stage:
    """The stage of a rank. This class is the only one of its model."""

    def __init__(
        self, index: int = 0, count: int = 1, group: Group = ALONE, everyone: Group = ALONE
    ) -> None:
        """group: the ranks that share the stage. everyone: all ranks of the model."""
        self.index, self.count, self.group = index, count, group
        self._hosts = everyone

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, num_layers: int) -> range:
        """Those of the stage. Where they do not divide, the first stages have one more: the last
        one has the head."""
        start, end = (-(-num_layers * i // self.count) for i in (self.index, self.index + 1))
        return range(start, end)

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """To the next stage. They must not be overwritten by the host."""
        raise NotImplementedError

    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        """Fill them with what the stage before has sent, which comes in its order."""
        raise NotImplementedError

    def send_tokens(self, token_ids: torch.Tensor) -> None:
        """From the last stage to the first. token_ids: int64, never overwritten."""
        raise NotImplementedError

    def receive_tokens(self, num_tokens: int) -> Callable[[], torch.Tensor]:
        """What returns the tokens, to be called in the order of the steps; the call lets a device
        wait for them, or the host of a CPU."""
        raise NotImplementedError

    def least(self, value: float) -> float:
        """As ``Group.least``, of the ranks of all stages."""
        return self._hosts.least(value)

    def abort(self) -> None:
        """As ``Group.abort``, and the same for what stages send."""
        self.group.abort()


def stage_of(rank: int, group_size: int, count: int) -> int:
    return (rank // group_size - 1) % count


def rank_of(stage: int, group_rank: int, group_size: int, count: int) -> int:
    return (stage + 1) % count * group_size + group_rank


WHOLE = Stage()
