"""Copies of KV blocks in host memory, for preempted requests: they need not compute them again.

On a GPU the copies run beside the forward passes, on two streams of their own::

    main   step N        | step N+1 (waits for its copies in) ...
    out         copies out of plan N+1: after step N, which may still write what they read
    in     copies in of plan N+1: at once, even beside step N, which does not use their blocks

The host waits for a copy out when it collects its step, and only then hands the blocks out again.
So no copy in has to wait for a copy out, and neither does a forward pass."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from engine.errors import ConfigError
from engine.layers.attention import KVCache
from engine.runner.direct_copies import DirectCopies
from kernels.transfer import to_device

# Without DirectCopies, blocks pass through a buffer on the device, where the pieces of all layers
# are joined, so that each block is one copy over the bus.
_STAGING_BYTES = 32 * 1024 * 1024
_NUM_BLOCKS_TIMED = 16
GIB = 1 << 30
MAX_DEFAULT_SWAP_SPACE = 4.0

Pairs = Sequence[tuple[int, int]]
"""(block of the cache, host block)"""


class HostBlocks:
    """``num_blocks`` blocks in (pinned) host memory beside a KV cache of any number of tensors.

    Each tensor of the cache has the block as its first dimension.
    """

    def __init__(self, kv_cache: KVCache, num_blocks: int, *, direct: bool = True) -> None:
        """direct: use ``DirectCopies`` where they support the cache, which halves the time."""
        self.num_blocks = num_blocks
        # Keys and values may be one tensor.
        tensors = [tensor for k, v in kv_cache for tensor in ((k,) if v is k else (k, v))]
        # As bytes, one row for each block: [num_cache_blocks, bytes of a block in this tensor].
        self._tensors = [tensor.view(len(tensor), -1).view(torch.uint8) for tensor in tensors]
        self._device = tensors[0].device
        self.block_bytes = sum(tensor.shape[1] for tensor in self._tensors)
        self._host = torch.empty(num_blocks, self.block_bytes, dtype=torch.uint8)
        if self._device.type == "cuda":
            _pin(self._host)
            weakref.finalize(self, _unpin, self._host)
        self._direct: DirectCopies | None = None
        if direct and DirectCopies.serves(self._tensors):
            self._direct = DirectCopies(self._tensors, self._host)
        num_staged = min(num_blocks, max(1, _STAGING_BYTES // self.block_bytes))
        num_staged = num_staged if self._direct is None else 0
        self._out = _Lane(self._device, num_staged, self.block_bytes)
        self._in = _Lane(self._device, num_staged, self.block_bytes)
        self.s_per_block = self._measure()

    def copy_out(self, pairs: Pairs) -> torch.cuda.Event | None:
        """Copy blocks to the host, after all steps that are enqueued so far. On a GPU, returns an
        event at the end of the copies."""
        with self._out.behind_current():
            if self._direct is not None:
                self._direct.copy(pairs, out=True)
                return self._out.event()
            for some in self._out.portions(pairs):
                staged = self._gather([block_id for block_id, _ in some])
                for row, (_, host_id) in zip(staged, some, strict=True):
                    self._host[host_id].copy_(row, non_blocking=True)
            return self._out.event()

    def copy_in(self, pairs: Pairs) -> None:
        """Copy blocks back, before everything that is enqueued on the current stream from now on.

        No step in flight may use the blocks, and their copies out must be over.
        """
        with self._in.entered():
            if self._direct is not None:
                self._direct.copy(pairs, out=False)
            else:
                self._copy_in_portions(pairs)
            end = self._in.event()
        if end is not None:
            torch.cuda.current_stream(self._device).wait_event(end)

    def _copy_in_portions(self, pairs: Pairs) -> None:
        for some in self._in.portions(pairs):
            staged = self._in.staging[: len(some)]
            for row, (_, host_id) in zip(staged, some, strict=True):
                row.copy_(self._host[host_id], non_blocking=True)
            self._scatter([block_id for block_id, _ in some], staged)

    def _gather(self, block_ids: list[int]) -> torch.Tensor:
        """[len(block_ids), block_bytes] uint8"""
        index = to_device(np.array(block_ids, np.int64), self._device)
        staged = self._out.staging[: len(block_ids)]
        start = 0
        for tensor in self._tensors:
            end = start + tensor.shape[1]
            staged[:, start:end] = tensor.index_select(0, index)
            start = end
        return staged

    def _scatter(self, block_ids: list[int], staged: torch.Tensor) -> None:
        index = to_device(np.array(block_ids, np.int64), self._device)
        start = 0
        for tensor in self._tensors:
            end = start + tensor.shape[1]
            tensor.index_copy_(0, index, staged[:, start:end])
            start = end

    def _measure(self) -> float:
        """Seconds to copy a block one way: the mean over some blocks, out and in, in the second of
        two rounds."""
        num_cache_blocks = self._tensors[0].shape[0]
        count = min(_NUM_BLOCKS_TIMED, self.num_blocks, num_cache_blocks)
        pairs = [(i, i) for i in range(count)]
        seconds = 0.0
        for _ in range(2):
            started = time.perf_counter()
            end = self.copy_out(pairs)
            if end is not None:
                end.synchronize()
            self.copy_in(pairs)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            seconds = time.perf_counter() - started
        return seconds / (2 * count)


def load_host_blocks(
    swap_space: float | None, kv_cache: KVCache, agree: Callable[[float], float] = float
) -> HostBlocks | None:
    """The host memory that ``EngineConfig.swap_space`` (in GiB) asks for; None if that is 0. By
    default, on a GPU, as much as the cache, up to ``MAX_DEFAULT_SWAP_SPACE``. agree: the number of
    blocks that all ranks have, of what this one could.

    Raises ``ConfigError`` if the memory cannot be pinned, or is too small for a block.
    """
    device = kv_cache[0][0].device
    cache_bytes = sum(tensor.nbytes for pair in kv_cache for tensor in pair)
    if swap_space is None:
        most = MAX_DEFAULT_SWAP_SPACE if device.type == "cuda" else 0.0
        swap_space = min(most, cache_bytes / GIB)
    if swap_space == 0:
        return None
    block_bytes = cache_bytes // len(kv_cache[0][0])
    num_blocks = int(swap_space * GIB) // block_bytes
    if num_blocks == 0:
        raise ConfigError(
            f"swap_space = {swap_space:g} GiB holds no block of {block_bytes} bytes: "
            "raise it, or set 0 for none"
        )
    return HostBlocks(kv_cache, int(agree(num_blocks)))


class _Lane:
    """Copies in one direction; on a GPU, with a stream and a staging buffer of its own."""

    def __init__(self, device: torch.device, num_staged: int, block_bytes: int) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.staging = torch.empty(num_staged, block_bytes, dtype=torch.uint8, device=device)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A context in which work is enqueued on this lane's stream."""
        if self.stream is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            yield

    @contextmanager
    def behind_current(self) -> Iterator[None]:
        """As ``entered``, but the work starts after everything enqueued on the current stream so
        far."""
        if self.stream is not None:  # Inside of ``entered`` it would itself be the current stream.
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with self.entered():
            yield

    def portions(self, pairs: Pairs) -> list[Pairs]:
        """The pairs, divided into portions that fit in the staging buffer."""
        size = len(self.staging)
        return [pairs[start : start + size] for start in range(0, len(pairs), size)]

    def event(self) -> torch.cuda.Event | None:
        """An event that marks the end of all copies so far."""
        if self.stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event


def _pin(host: torch.Tensor) -> None:
    """Pin memory in place: torch's own pinned allocations are rounded up to powers of two, which
    could take nearly twice as much."""
    error = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, 0)  # type: ignore[no-untyped-call]
    if int(error) != 0:
        raise ConfigError(
            f"{host.nbytes} bytes of host memory cannot be pinned ({error}): lower swap_space"
        )


def _unpin(host: torch.Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(host.data_ptr())  # type: ignore[no-untyped-call]
