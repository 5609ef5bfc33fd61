"""Memory that the GPUs of one host write into each other, and sums over it for few bytes.

By CUDA's interprocess handles, and without NVLink's multicast.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch

from kernels import cuda
from kernels.nccl import Exchange

MOST_RANKS = 8
_CONTROL, _CTAS, _SLOTS = 16384, 264, 16384 + 32768
"""As kExchangeControl, kExchangeCtas and kExchangePlain + kExchangeFlagged in all_reduce.cuh."""
MOST_ROW_BYTES = 16384
_FLAT_ELEMENTS = 4096
"""At most of a row, where rows do not matter."""
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class PeerSums:
    """All ranks must make the same calls in the same order, on one stream each."""

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        """The current device is this rank's. Raises ``RuntimeError`` where GPUs cannot reach each
        other's memory."""
        self._rank = rank
        self._runtime: Any = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '').split('.')[0]}")
        num_bytes = _CONTROL + _CTAS * 2 * size * _SLOTS
        own = ctypes.c_void_p()
        failed = self._runtime.cudaMalloc(ctypes.byref(own), ctypes.c_size_t(num_bytes))
        failed = failed or self._runtime.cudaMemset(own, 0, ctypes.c_size_t(num_bytes))
        torch.cuda.synchronize()
        handle = _Handle()
        failed = failed or self._runtime.cudaIpcGetMemHandle(ctypes.byref(handle), own)
        sent = exchange(bytes([failed == 0]) + bytes(handle))
        addresses = [own.value or 0] * size
        for other, found in enumerate(sent):
            if other == rank or failed or not found[0]:
                continue
            theirs, address = _Handle.from_buffer_copy(found[1:]), ctypes.c_void_p()
            flags = ctypes.c_uint(_LAZY_PEER_ACCESS)
            failed = self._runtime.cudaIpcOpenMemHandle(ctypes.byref(address), theirs, flags)
            addresses[other] = address.value or 0
        if failed:
            self._runtime.cudaGetLastError()  # which would fail the next call of torch's otherwise
        # One rank must not use what another one lacks.
        if not all(done[0] for done in exchange(bytes([failed == 0]))):
            raise RuntimeError(f"no rank's memory for all: CUDA error {failed} on rank {rank}")
        self._own = addresses[rank]
        self._addresses = torch.from_numpy(np.array(addresses, np.int64))

    @staticmethod
    def serves(x: torch.Tensor) -> bool:
        """x: contiguous."""
        return x.dtype in cuda.FLOATS and x.nbytes % 16 == 0 == x.data_ptr() % 16 and x.nbytes > 0

    def norms(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether ``add_and_norm`` serves these. x: contiguous."""
        row_bytes = x.shape[1] * x.itemsize
        fits = row_bytes % 16 == 0 and row_bytes <= MOST_ROW_BYTES
        return fits and weight.dtype in (x.dtype, torch.float32) and self.serves(x)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' ``x``, bitwise the same on each."""
        width = x.shape[-1]
        if x.dim() != 2 or x.nbytes > MOST_ROW_BYTES * len(x) or width * x.itemsize % 16:
            width = math.gcd(x.numel(), _FLAT_ELEMENTS)
        rows = x.view(-1, width)
        out: torch.Tensor = cuda.native.all_reduce(rows, self._addresses, rank=self._rank)
        return out.view(x.shape)

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """``ops.rms_norm`` of the sum of all ranks' ``x`` and of ``residual``, which becomes their
        sum. x, residual: [rows, width], a row of at most ``MOST_ROW_BYTES``."""
        out: torch.Tensor = cuda.native.all_reduce(
            x,
            self._addresses,
            rank=self._rank,
            residual=residual,
            weight=weight,
            eps=eps,
        )
        return out

    def abort(self) -> None:
        """End the kernels that wait; what they sum up then is nothing."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._runtime.cudaMemsetAsync(
            ctypes.c_void_p(self._own), 1, ctypes.c_size_t(4), ctypes.c_void_p(stream.cuda_stream)
        )
