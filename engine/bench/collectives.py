"""How much of its time rank 0 spends in collectives, waiting for other ranks included."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from engine.parallel.stage import Stage

_KERNELS = ("nccl", "all_reduce_kernel")
"""In the names of kernels: those of NCCL, and of ``kernels/csrc/collectives``."""


def share_of(run: Callable[[], object], stage: Stage, device: str) -> float | None:
    """The share in ``run``: on a GPU of the time that kernels run, in graphs or not, None if they
    cannot be seen; on a CPU of all time."""
    return _on_gpu(run) if device.startswith("cuda") else _on_host(run, stage)


def _on_gpu(run: Callable[[], object]) -> float | None:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    taken = {
        each.key.lower(): float(each.self_device_time_total) for each in profiler.key_averages()
    }
    total = sum(taken.values())
    found = sum(us for name, us in taken.items() if any(part in name for part in _KERNELS))
    return found / total if total else None


def _on_host(run: Callable[[], object], stage: Stage) -> float:
    taken_s = 0.0

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal taken_s
            begun = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                taken_s += time.perf_counter() - begun

        return wrapped

    places: list[tuple[object, str]] = [
        (stage.group, name) for name in ("all_reduce", "all_gather")
    ]
    places += [(stage, name) for name in ("send", "receive")]
    for place, name in places:
        setattr(place, name, timed(getattr(place, name)))
    begun = time.perf_counter()
    try:
        run()
    finally:
        for place, name in places:
            delattr(place, name)
    return taken_s / (time.perf_counter() - begun)
