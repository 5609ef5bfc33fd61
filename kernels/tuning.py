"""Measures which GEMM (see ``gemm``) is fastest for each weight of a model."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from kernels import cuda, ops
from kernels.gemm import (
    LIBRARY,
    MAX_CHOSEN_ROWS,
    UNMEASURED,
    WIDE_WIDTHS,
    Choice,
    Gemm,
    Gemms,
    Kind,
    has_wide,
)
from kernels.kept_choices import KeptChoices

_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, *range(128, 513, 64), 640, 768, 896, 1024)
"""Numbers of rows that are always measured. For a number in between, the choice of the next larger
one takes up to 5 % longer than the best. So the batch sizes of CUDA graphs, which most steps have,
are measured as well."""
_LOADED = (
    *range(1, 513),
    *(rows + odd for rows in range(520, 1025, 8) for odd in (-1, 0)),
    *(rows + odd for rows in range(1088, 8449, 64) for odd in (-1, 0)),
)
"""Numbers of rows for which the library's kernels are loaded at start-up. For a multiple of 8 it
uses another kernel than for the numbers in between."""
_REPEATS = 5
_MAX_DISTINCT = 8
_DISTINCT_BYTES = 1 << 30
"""A measurement multiplies with up to so many different weights of a shape, and bytes of them, so
that none is in the L2 cache."""
_LEAD = 0.99
"""A GEMM must take less than this part of the library's time, or the difference may be noise."""
_LEAD_OF_GATED = 1.03
"""The same for skinny GEMMs that gate. In a layer the next GEMM's weights are loaded while
ours ends, which a measurement here does not see: at two rows a step of 32 layers takes 4,013 us
with ours and 4,288 with the library's."""
_FAR = 1.15
"""Gemms that take more than this many times the best time of the first round are dropped."""
_FLUSHED_BYTES = 256 * 1024 * 1024
"""Several times the L2 cache of any GPU. Writing so much empties it, as in a model, where every
weight is read from memory."""
_FLUSHES = 6
"""So many of these writes take long enough for the host to launch a whole measurement meanwhile."""


@dataclass(frozen=True, slots=True)
class Use:
    """A weight of a model, and how it is multiplied."""

    weight: torch.Tensor
    """[features, k]"""
    gated: bool
    """Whether ``silu_mul`` of the result is computed."""
    max_rows: int
    """The most rows that a step multiplies with it."""
    bias: torch.Tensor | None = None
    """[features]"""


@torch.inference_mode()
def measure(
    uses: Iterable[Use],
    kept: KeptChoices,
    batches: Iterable[int] = (),
    on_measuring: Callable[[], None] = lambda: None,
) -> Gemms:
    """Choose the fastest GEMM for each kind of weight and number of rows.

    uses: all weights of a model, on one GPU. kept: earlier measurements on such a GPU, which are
    not repeated; new ones are added. batches: numbers of rows to measure in addition to ``_ROWS``.
    on_measuring: called before a measurement that takes seconds, so not where all was kept.
    """
    by_kind: dict[Kind, list[Use]] = defaultdict(list)
    for use in uses:
        features, k = use.weight.shape
        if use.weight.dtype in cuda.DECODE_DTYPES and features % 16 == 0 == k % 64:
            kind = Kind(use.weight.shape, use.weight.dtype, use.gated)
            by_kind[kind].append(use)
    if not by_kind:
        return UNMEASURED
    device = next(iter(by_kind.values()))[0].weight.device
    chosen = {
        kind: _chosen(kind, some, kept, batches, on_measuring) for kind, some in by_kind.items()
    }
    sms = torch.cuda.get_device_properties(device).multi_processor_count if has_wide(device) else 0
    return Gemms(chosen, sms)


def _chosen(
    kind: Kind,
    uses: Sequence[Use],
    kept: KeptChoices,
    batches: Iterable[int],
    on_measuring: Callable[[], None],
) -> Choice:
    max_rows = max(use.max_rows for use in uses)
    sizes = _up_to(max_rows, batches)
    for use in {use.bias is None: use for use in uses}.values():
        _load_library(use.weight, use.bias, max_rows)
    weights = [use.weight for use in uses]
    found = kept.read(kind)
    if not found.keys() >= set(sizes):
        on_measuring()
        with kept.locked():
            found = kept.read(kind)  # another process may have measured while this one waited
            found |= _measured(sorted({*sizes} - found.keys()), kind, weights)
            kept.write(kind, found)
    choice = Choice(sizes, [found[rows] for rows in sizes])
    _load_chosen(choice, kind, uses[0])
    return choice


def _load_chosen(choice: Choice, kind: Kind, use: Use) -> None:
    """Run each chosen GEMM once: choices may come from another process, and to load a kernel
    delays the first step that uses it (see ``_load_library``)."""
    x = torch.zeros(choice.rows[-1], kind.shape[1], dtype=kind.dtype, device=use.weight.device)
    for rows, gemm in zip(choice.rows, choice.gemms, strict=True):
        if gemm.name != "library":
            gemm(x[:rows], use.weight, use.bias, gated=kind.gated)


def _measured(sizes: Iterable[int], kind: Kind, weights: Sequence[torch.Tensor]) -> dict[int, Gemm]:
    device = weights[0].device
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
    return {
        rows: _fastest([*_candidates(rows, device)], rows, kind, weights, flushed) for rows in sizes
    }


def _up_to(max_rows: int, batches: Iterable[int]) -> Sequence[int]:
    """The numbers of rows to measure for steps of at most ``max_rows``, ascending."""
    most = min(max_rows, MAX_CHOSEN_ROWS)
    return [*sorted(rows for rows in {*_ROWS, *batches} if rows < most), most]


def _load_library(weight: torch.Tensor, bias: torch.Tensor | None, max_rows: int) -> None:
    """Make the library load its kernels now: it has several for different numbers of rows, and
    others with a bias.

    To load a kernel at its first use blocks until the GPU is idle, so it would take as long as the
    step before, with all streams waiting."""
    sizes = _LOADED[: bisect_right(_LOADED, max_rows)]
    x = torch.zeros(sizes[-1], weight.shape[1], dtype=weight.dtype, device=weight.device)
    for rows in sizes:
        F.linear(x[:rows], weight, bias)


def _candidates(rows: int, device: torch.device) -> Iterator[Gemm]:
    yield LIBRARY
    if rows <= cuda.MAX_SKINNY_TOKENS:
        for warps in cuda.SKINNY_WARPS:
            yield Gemm("skinny", warps)
    elif has_wide(device):
        yield from (Gemm("wide", width) for width in WIDE_WIDTHS)


def _operands(
    rows: int, kind: Kind, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """[rows, 2 * k] numbers, from which ``silu_mul`` makes the inputs; and some distinct
    weights."""
    # Random numbers: with zeros a GPU takes less power, and multiplies faster.
    halves = torch.randn(rows, 2 * kind.shape[1], dtype=kind.dtype, device=weights[0].device)
    return halves, weights[: min(_MAX_DISTINCT, -(-_DISTINCT_BYTES // weights[0].nbytes))]


def _fastest(
    candidates: Sequence[Gemm],
    rows: int,
    kind: Kind,
    weights: Sequence[torch.Tensor],
    flushed: torch.Tensor,
) -> Gemm:
    """The candidate with the least median time over some rounds, in which they take turns. Those
    that are far behind in the first round are dropped."""
    if len(candidates) == 1:
        return candidates[0]
    halves, used = _operands(rows, kind, weights)
    times: dict[Gemm, list[float]] = {gemm: [] for gemm in candidates}

    def measure(gemm: Gemm) -> None:
        times[gemm].append(_microseconds(gemm, halves, used, flushed, gated=kind.gated))

    for gemm in candidates:
        gemm(ops.silu_mul(halves), used[0], None, gated=kind.gated)  # what is made at first use
        measure(gemm)
    least = min(first for first, *_ in times.values())
    close = [p for p in candidates if times[p][0] <= _FAR * least or p == LIBRARY]
    for _ in range(_REPEATS - 1):
        for gemm in close:
            measure(gemm)
    medians = {gemm: sorted(times[gemm])[_REPEATS // 2] for gemm in close}
    ours = [gemm for gemm in close if gemm != LIBRARY]
    best = min(ours, key=medians.__getitem__, default=LIBRARY)
    lead = _LEAD_OF_GATED if kind.gated and best.name == "skinny" else _LEAD
    return best if medians[best] < lead * medians[LIBRARY] else LIBRARY


def _microseconds(
    gemm: Gemm,
    halves: torch.Tensor,
    weights: Sequence[torch.Tensor],
    flushed: torch.Tensor,
    *,
    gated: bool,
) -> float:
    """The time of a series of GEMMs with different weights. Before each runs a small kernel, as
    in a model: our GEMMs load their first weights while that runs, the library's do not."""
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    for _ in range(_FLUSHES):
        flushed.zero_()
    start.record()
    for weight in weights:
        gemm(ops.silu_mul(halves), weight, None, gated=gated)
    end.record()
    end.synchronize()
    microseconds: float = start.elapsed_time(end) * 1e3
    return microseconds
