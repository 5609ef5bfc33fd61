"""Copying small arrays to a device and back without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels import cuda

MAX_ARGUMENT_BYTES = 2 * 4064
"""The most bytes that are sent as arguments of kernels, of which one launch takes half. A launch
takes 2 us; to alternate kernels and the copy engine takes 10 us."""


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of ``array`` on ``device``, ordered on its current stream; on a CPU ``array`` itself.

    A larger one goes by way of pinned memory, which torch keeps until the copy is done: pageable
    memory would make the host wait for everything the stream has before it.
    """
    host = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return host.to(device)
    if _is_small(host):
        target = torch.empty_like(host, device=device)
        cuda.native.store_values(target, host)
        return target
    return _pinned_copy(host).to(device, non_blocking=True)


def write(target: torch.Tensor, array: npt.NDArray[Any]) -> None:
    """Copy ``array``, of the same shape and dtype, into the contiguous ``target``, as ``to_device``
    copies."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if target.is_cuda and _is_small(host):
        cuda.native.store_values(target, host)
    else:
        target.copy_(_pinned_copy(host) if target.is_cuda else host, non_blocking=True)


def put(table: torch.Tensor, found: npt.NDArray[np.int64]) -> None:
    """``table.view(-1)[found[0]] = found[1]``, as ``to_device`` copies.

    table: contiguous, int32 or int64. found: [2, n], values of at most 32 bits, no two places
    alike.
    """
    if table.is_cuda and found.nbytes <= 2 * MAX_ARGUMENT_BYTES and cuda.is_loaded():
        cuda.native.put_values(table, torch.from_numpy(np.ascontiguousarray(found)))
        return
    sent = to_device(found, table.device)
    table.view(-1).index_copy_(0, sent[0], sent[1].to(table.dtype))


def _is_small(host: torch.Tensor) -> bool:
    """Whether an array can be sent as arguments, which are 32-bit words."""
    fits = host.nbytes <= MAX_ARGUMENT_BYTES and host.element_size() >= 4
    return fits and cuda.is_loaded()


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
