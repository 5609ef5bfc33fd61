"""Collectives between GPUs of one host: NCCL's, and an all-reduce of our own for few bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from engine.parallel.gloo import GlooGroup, GlooStage
from engine.parallel.group import Group
from engine.parallel.stage import Stage
from kernels import cuda
from kernels.nccl import Communicator
from kernels.peer_memory import MOST_RANKS, PeerSums

logger = logging.getLogger(__name__)

_MOST_SUMMED_BYTES = 8 << 20
"""That each rank sends to all others at once; above, NCCL is faster (two H200s: 27.2 beside 40.8 us
for 4 MB, 102.6 beside 81.4 for 16)."""


class GpuGroup(Group):
    def __init__(self, hosts: GlooGroup) -> None:
        """hosts: the same ranks, as their host processes reach each other. The current device is
        this rank's."""
        super().__init__(hosts.rank, hosts.size)
        self._hosts = hosts
        self._nccl = Communicator(hosts.rank, hosts.size, hosts.gather_bytes)
        self._sums = self._peers()
        self._most_bytes = _MOST_SUMMED_BYTES // (hosts.size - 1)

    def _peers(self) -> PeerSums | None:
        if self.size > MOST_RANKS or self.least(float(cuda.available())) == 0:
            return None
        try:
            return PeerSums(self.rank, self.size, self._hosts.gather_bytes)
        except RuntimeError as error:
            logger.warning("NCCL sums all: GPUs do not reach each other's memory (%s)", error)
            return None

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        sums = self._sums
        if sums is None or x.nbytes > self._most_bytes or not sums.norms(x, weight):
            return super().add_and_norm(x, residual, weight, eps)
        return sums.add_and_norm(x, residual, weight, eps)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        sums = self._sums
        if sums is not None and x.nbytes <= self._most_bytes and sums.serves(x):
            return sums.all_reduce(x)
        self._nccl.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(self.size, *x.shape)
        self._nccl.all_gather(out, x)
        return out

    def least(self, value: float) -> float:
        return self._hosts.least(value)

    def abort(self) -> None:
        if self._sums is not None:
            self._sums.abort()
        self._nccl.abort()


class GpuStage(Stage):
    """Sampled tokens have a communicator of their own, and are sent beside other work: the last
    stage must not wait for the first to take them before it takes what the first has sent for
    another step. They are few, so that NCCL stores them where the first stage finds them: no kernel
    waits meanwhile, which would take an SM from GEMMs that are made for all of them."""

    def __init__(self, hosts: GlooStage, group: Group) -> None:
        """hosts: the same stage, as its host processes reach each other. group: of its GPUs."""
        everyone = hosts.everyone
        super().__init__(hosts.index, hosts.count, group, everyone)
        self._peers = hosts.peers
        self._hidden, self._tokens = (
            Communicator(everyone.rank, everyone.size, everyone.gather_bytes) for _ in range(2)
        )
        self._beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._connect()

    def _connect(self) -> None:
        """Use each way once: what the first use sets up, a capture could not."""
        x = torch.zeros(2, 1, device="cuda")
        if not self.is_first:
            self.receive([x[0], x[1]])
        if not self.is_last:
            self.send([x[0], x[1]])
        if self.is_last:
            self.send_tokens(torch.zeros(1, dtype=torch.int64, device="cuda"))
        if self.is_first:
            self.receive_tokens(1)()
        torch.cuda.synchronize()

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        self._hidden.send(tensors, self._peers.following)

    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        self._hidden.receive(tensors, self._peers.before)

    def send_tokens(self, token_ids: torch.Tensor) -> None:
        self._beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside):
            self._tokens.send([token_ids], self._peers.first)
        token_ids.record_stream(self._beside)

    def receive_tokens(self, num_tokens: int) -> Callable[[], torch.Tensor]:
        def arrived() -> torch.Tensor:
            token_ids = torch.empty(num_tokens, dtype=torch.int64, device="cuda")
            self._tokens.receive([token_ids], self._peers.last)
            return token_ids

        return arrived

    def abort(self) -> None:
        super().abort()
        self._hidden.abort()
        self._tokens.abort()
