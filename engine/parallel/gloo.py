"""Collectives between processes on CPUs, by gloo over the loopback device."""

from __future__ import annotations

import datetime
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed

from engine.parallel.group import ALONE, Group
from engine.parallel.stage import Stage, rank_of, stage_of

distributed: Any = torch.distributed  # Its stubs leave out most of what is used here.

_HIDDEN, _TOKENS = 0, 1
"""Tags of messages between stages: each pair of ranks has them in order, by tag."""
_MESSAGES_EACH = 3
"""Of a step, at most."""
_TIMEOUT = datetime.timedelta(minutes=30)
"""Ranks may load their weights at different speeds. One that is gone is noticed at once, by its
connection."""


class GlooGroup(Group):
    def __init__(self, rank: int, size: int, rendezvous: int, name: str = "") -> None:
        """rendezvous: the descriptor of an empty file that all ranks share. name: of the group,
        where they form several."""
        super().__init__(rank, size)
        # A path through which the file is opened again: nothing has a name that could be left over.
        # The store opens it once more when it goes, so this descriptor is never closed: its number
        # might be another file's by then.
        store = distributed.FileStore(f"/proc/self/fd/{os.dup(rendezvous)}", -1)
        store = distributed.PrefixStore(name, store)
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _TIMEOUT
        self._gloo = distributed.ProcessGroupGloo(store, rank, size, options)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self._gloo.allreduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(self.size, *x.shape)
        self._gloo._allgather_base(out.view(self.size * x.shape[0], *x.shape[1:]), x).wait()
        return out

    def least(self, value: float) -> float:
        given = torch.tensor([value], dtype=torch.float64)
        return float(self.all_gather(given).min())

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """What each rank passes, by rank; all of the same length."""
        sent = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return [bytes(part.tolist()) for part in self.all_gather(sent)]

    def send(self, x: torch.Tensor, to: int, tag: int) -> Any:
        """What waits until it has arrived. It must live, and stay as it is, until then."""
        return self._gloo.send([x], to, tag)

    def receive(self, x: torch.Tensor, source: int, tag: int) -> Any:
        return self._gloo.recv([x], source, tag)


class Peers(NamedTuple):
    """The ranks that a rank passes something to or gets something from, in other stages."""

    before: int
    following: int
    first: int
    last: int


class GlooStage(Stage):
    def __init__(self, everyone: GlooGroup, group: Group, count: int) -> None:
        size = everyone.size // count
        index = stage_of(everyone.rank, size, count)
        super().__init__(index, count, group, everyone)
        self.everyone = everyone
        stages = (index - 1) % count, (index + 1) % count, 0, count - 1
        self.peers = Peers(*(rank_of(stage, group.rank, size, count) for stage in stages))
        self._under_way: deque[tuple[Any, torch.Tensor]] = deque()

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        for x in tensors:
            self._send(x, self.peers.following, _HIDDEN)

    def _send(self, x: torch.Tensor, to: int, tag: int) -> None:
        """The rank goes on while the other one is busy. What is older than the steps in flight has
        arrived."""
        self._under_way.append((self.everyone.send(x, to, tag), x))
        while len(self._under_way) > _MESSAGES_EACH * (1 + self.count):
            self._under_way.popleft()[0].wait()

    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        for work in [self.everyone.receive(x, self.peers.before, _HIDDEN) for x in tensors]:
            work.wait()

    def send_tokens(self, token_ids: torch.Tensor) -> None:
        self._send(token_ids.clone(), self.peers.first, _TOKENS)

    def receive_tokens(self, num_tokens: int) -> Callable[[], torch.Tensor]:
        token_ids = torch.empty(num_tokens, dtype=torch.int64)
        work = self.everyone.receive(token_ids, self.peers.last, _TOKENS)

        def arrived() -> torch.Tensor:
            work.wait()
            return token_ids

        return arrived


def join_on_hosts(
    rank: int, group_size: int, count: int, rendezvous: int
) -> tuple[GlooGroup, Group]:
    """All ranks, and those that share a stage. Waits until all have come."""
    everyone = GlooGroup(rank, group_size * count, rendezvous, "all")
    if count == 1:
        return everyone, everyone
    if group_size == 1:
        return everyone, ALONE
    stage = stage_of(rank, group_size, count)
    return everyone, GlooGroup(rank % group_size, group_size, rendezvous, f"stage {stage}")
