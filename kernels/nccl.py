"""NCCL by its C interface: on the current stream, capturable in CUDA graphs, abortable.

torch's process groups have a thread that asks for the state of events, which disturbs the capture
of graphs, and cannot be aborted from another thread while a call waits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

Exchange = Callable[[bytes], list[bytes]]
"""Gathers what each rank passes, all of the same length, by rank."""

_LIBRARY = "libnccl.so.2"
_DTYPES = {
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.bfloat16: 9,
}
_SUM = 0


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


class Communicator:
    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        """The current device is this rank's."""
        self._library: Any = ctypes.CDLL(_LIBRARY)  # torch has loaded it
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        unique = _UniqueId()
        if rank == 0:
            self._check(self._library.ncclGetUniqueId(ctypes.byref(unique)))
        sent = exchange(bytes(unique))[0]
        ctypes.memmove(ctypes.byref(unique), sent, len(sent))
        self._communicator = ctypes.c_void_p()
        torch.cuda.current_stream()  # creates the device's context
        init = self._library.ncclCommInitRank
        init.argtypes = (ctypes.c_void_p, ctypes.c_int, _UniqueId, ctypes.c_int)
        created = ctypes.byref(self._communicator)
        self._check(init(created, size, unique, rank))
        # The first collective sets connections up, which a capture could not.
        warm = torch.zeros(1, device="cuda")
        self.all_reduce(warm)
        torch.cuda.synchronize()

    def all_reduce(self, x: torch.Tensor) -> None:
        """In place. x: contiguous."""
        address = ctypes.c_void_p(x.data_ptr())
        call = self._library.ncclAllReduce
        size, dtype = ctypes.c_size_t(x.numel()), _DTYPES[x.dtype]
        self._check(call(address, address, size, dtype, _SUM, self._communicator, _stream()))

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """out: [size, *x.shape]. Both contiguous."""
        to, of = ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(x.data_ptr())
        call = self._library.ncclAllGather
        size, dtype = ctypes.c_size_t(x.numel()), _DTYPES[x.dtype]
        self._check(call(of, to, size, dtype, self._communicator, _stream()))

    def send(self, tensors: Sequence[torch.Tensor], to: int) -> None:
        """tensors: contiguous. The stream waits until the rank ``to`` takes them."""
        self._pass(self._library.ncclSend, tensors, to)

    def receive(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        """Fill them, contiguous, with what ``source`` sends."""
        self._pass(self._library.ncclRecv, tensors, source)

    def _pass(self, call: Any, tensors: Sequence[torch.Tensor], peer: int) -> None:
        """As one kernel."""
        self._check(self._library.ncclGroupStart())
        for x in tensors:
            size, dtype = ctypes.c_size_t(x.numel()), _DTYPES[x.dtype]
            address = ctypes.c_void_p(x.data_ptr())
            self._check(call(address, size, dtype, peer, self._communicator, _stream()))
        self._check(self._library.ncclGroupEnd())

    def abort(self) -> None:
        """From any thread."""
        self._library.ncclCommAbort(self._communicator)

    def _check(self, result: int) -> None:
        if result != 0:
            words = self._library.ncclGetErrorString(result).decode()
            raise RuntimeError(f"NCCL: {words}")


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
