"""Swapping with one kernel launch: the kernel reads or writes pinned host memory itself.

Without it, each tensor of the cache is gathered by a launch of its own, and each block is copied by
another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kernels import cuda
from kernels.transfer import to_device

MAX_CTAS = 16
"""Enough to saturate the bus, and few enough to leave SMs for the forward pass that runs
meanwhile."""
_UNIT = 16
"""Bytes that a thread copies at once."""


class DirectCopies:
    """Copies blocks between the tensors of a cache and rows of host memory."""

    def __init__(self, tensors: Sequence[torch.Tensor], host: torch.Tensor) -> None:
        """tensors: for which ``serves``; [num_cache_blocks, bytes of a block] uint8 each. host:
        pinned, [num_blocks, sum of these bytes] uint8."""
        device = tensors[0].device
        self._tensors = to_device(places(tensors), device)
        self._host_address = cuda.native.mapped_address(host)
        self._row_bytes = host.shape[1]
        self._owned = tensors, host  # Keeps the memory alive to which the addresses point.

    @staticmethod
    def serves(tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the kernel can copy blocks of these."""
        aligned = all(t.data_ptr() % _UNIT == 0 == t.shape[1] % _UNIT for t in tensors)
        return aligned and tensors[0].is_cuda and cuda.available()

    def copy(self, pairs: Sequence[tuple[int, int]], *, out: bool) -> None:
        """Copy on the current stream. pairs: (block of the cache, host block). out: towards the
        host."""
        if not pairs:
            return
        blocks, host_blocks = np.array(pairs, np.int64).T
        device = self._tensors.device
        cuda.native.copy_blocks(
            self._tensors,
            to_device(self._host_address + host_blocks * self._row_bytes, device),
            to_device(blocks.astype(np.int32), device),
            out=out,
            max_ctas=MAX_CTAS,
        )


def places(tensors: Sequence[torch.Tensor]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """[num_tensors, 3]: address, bytes of a block, and offset in a host row."""
    sizes = np.array([tensor.shape[1] for tensor in tensors], np.int64)
    addresses = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    return np.stack((addresses, sizes, sizes.cumsum() - sizes), 1)
