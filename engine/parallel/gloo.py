"""Collectives between processes on CPUs, by gloo over the loopback device."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
import torch.distributed

from engine.parallel.group import Group

distributed: Any = torch.distributed  # Its stubs leave out most of what is used here.

_TIMEOUT = datetime.timedelta(minutes=30)
"""Ranks may load their weights at different speeds. One that is gone is noticed at once, by its
connection."""


class GlooGroup(Group):
    def __init__(self, rank: int, size: int, rendezvous: int) -> None:
        """rendezvous: the descriptor of an empty file that all ranks share."""
        super().__init__(rank, size)
        # A path through which the file is opened again: nothing has a name that could be left over.
        # The store opens it once more when it goes, so this descriptor is never closed: its number
        # might be another file's by then.
        store = distributed.FileStore(f"/proc/self/fd/{os.dup(rendezvous)}", size)
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
