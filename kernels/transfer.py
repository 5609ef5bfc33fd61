"""Copying small arrays to a device and back without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of ``array`` on ``device``, ordered on its current stream; on a CPU ``array`` itself.

    From pinned memory, which torch keeps until the copy is done: pageable memory would make the
    host wait for everything the stream has before it.
    """
    host = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return host.to(device)
    return _pinned_copy(host).to(device, non_blocking=True)


def write(target: torch.Tensor, array: npt.NDArray[Any]) -> None:
    """Copy ``array``, of the same shape and dtype, into the contiguous ``target``, as ``to_device``
    copies."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    target.copy_(_pinned_copy(host) if target.is_cuda else host, non_blocking=True)


def _pinned_copy(host: torch.Tensor) -> torch.Tensor:
    """As ``host.pin_memory()``, which asks the driver first whether it is pinned already."""
    return torch.empty_like(host, pin_memory=True).copy_(host)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a GPU's tensor in host memory, complete once its current stream has reached this
    point.

    The copy is pinned: copying to pageable memory would make the host wait.
    """
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
