"""Collectives between GPUs of one host: NCCL's, and an all-reduce of our own for few bytes."""

from __future__ import annotations

import torch

from engine.parallel.gloo import GlooGroup
from engine.parallel.group import Group
from engine.parallel.nccl import Communicator


class GpuGroup(Group):
    def __init__(self, hosts: GlooGroup) -> None:
        """hosts: the same ranks, as their host processes reach each other. The current device is
        this rank's."""
        super().__init__(hosts.rank, hosts.size)
        self._hosts = hosts
        self._nccl = Communicator(hosts)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self._nccl.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(self.size, *x.shape)
        self._nccl.all_gather(out, x)
        return out

    def least(self, value: float) -> float:
        return self._hosts.least(value)

    def abort(self) -> None:
        self._nccl.abort()
