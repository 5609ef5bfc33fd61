"""Copies of half-filled blocks: a request takes over what a cached prefix has of its last block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kernels import cuda
from kernels.transfer import to_device

_UNIT = 16
"""Bytes that a thread of the kernel copies at once."""


def as_stack(tensors: torch.Tensor) -> torch.Tensor:
    """tensors: [num_tensors, num_blocks, block_size, ...], contiguous. The same memory as
    [num_tensors, num_blocks, block_size, bytes of a slot] uint8: torch cannot copy parts of every
    dtype."""
    return tensors.flatten(3).view(torch.uint8)


class BlockCopies:
    """Between the blocks of everything that is stored by block, in one launch on a GPU: requests
    often come many at a time, and of as many prompts each may need a copy."""

    def __init__(self, stacks: Sequence[torch.Tensor], *, in_one: bool | None = None) -> None:
        """stacks: as of ``as_stack``, all with as many blocks of as many slots. in_one: copy with
        one launch; by default where ``serves`` says that it can be done."""
        self._stacks = stacks
        self._block_size = stacks[0].shape[2]
        self._places: torch.Tensor | None = None
        """[num_tensors, 2] int64: as for ``cuda.copy_leading_slots``."""
        if self.serves(stacks) if in_one is None else in_one:
            cuda.load()
            places = [(tensor.data_ptr(), stack.shape[3]) for stack in stacks for tensor in stack]
            self._places = to_device(np.array(places, np.int64), stacks[0].device)

    @staticmethod
    def serves(stacks: Sequence[torch.Tensor]) -> bool:
        aligned = all(s.data_ptr() % _UNIT == 0 == s.shape[3] % _UNIT for s in stacks)
        return aligned and stacks[0].is_cuda and cuda.available()

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """copies: (source block, target block, number of leading slots), as in plans. A target is
        nobody's source."""
        if not copies:
            return
        if self._places is not None:
            sent = to_device(np.array(copies, np.int32), self._places.device)
            cuda.copy_leading_slots(self._places, sent, block_size=self._block_size)
            return
        for stack in self._stacks:
            for source, target, num_slots in copies:
                stack[:, target, :num_slots] = stack[:, source, :num_slots]
