"""Copies of partly filled blocks, for requests whose cached prefix ends within a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kernels import cuda
from kernels.transfer import to_device

_UNIT = 16
"""Bytes that a thread of the kernel copies at once."""


def as_stack(tensors: torch.Tensor) -> torch.Tensor:
    """A view of tensors as bytes: [num_tensors, num_blocks, block_size, bytes of a slot] uint8.

    tensors: [num_tensors, num_blocks, block_size, ...], contiguous. (Torch cannot index tensors of
    every dtype, FP8 for one.)
    """
    return tensors.flatten(3).view(torch.uint8)


class BlockCopies:
    """Copies leading slots from block to block, in the KV cache and in everything else that is
    stored by block. On a GPU this is one launch for all copies of a step, since many prompts may
    arrive at once, and each may need one."""

    def __init__(self, stacks: Sequence[torch.Tensor], *, in_one: bool | None = None) -> None:
        """stacks: results of ``as_stack``, all with the same numbers of blocks and of slots.
        in_one: whether to copy with one launch; None: if ``serves``."""
        self._stacks = stacks
        self._block_size = stacks[0].shape[2]
        self._addresses: torch.Tensor | None = None
        """[num_tensors, 2] int64: the ``tensors`` of ``native.copy_leading_slots``."""
        if self.serves(stacks) if in_one is None else in_one:
            table = [(tensor.data_ptr(), stack.shape[3]) for stack in stacks for tensor in stack]
            self._addresses = to_device(np.array(table, np.int64), stacks[0].device)

    @staticmethod
    def serves(stacks: Sequence[torch.Tensor]) -> bool:
        """Whether the kernel can copy between these."""
        aligned = all(s.data_ptr() % _UNIT == 0 == s.shape[3] % _UNIT for s in stacks)
        return aligned and stacks[0].is_cuda and cuda.available()

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """copies: (source block, target block, number of leading slots), as in plans. No target is
        a source as well."""
        if not copies:
            return
        if self._addresses is not None:
            sent = to_device(np.array(copies, np.int32), self._addresses.device)
            cuda.native.copy_leading_slots(self._addresses, sent, block_size=self._block_size)
            return
        for stack in self._stacks:
            for source, target, num_slots in copies:
                stack[:, target, :num_slots] = stack[:, source, :num_slots]
