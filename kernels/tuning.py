"""Which product is fastest for each number of rows of a model's weights, by trying them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from kernels import cublas_lt, cuda, cuda_wide, ops
from kernels.kept_choices import KeptChoices
from kernels.products import (
    LIBRARY,
    MAX_CHOSEN_ROWS,
    UNMEASURED,
    Choice,
    Kind,
    Product,
    Products,
)

_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, *range(128, 513, 64), 640, 768, 896, 1024)
"""Measured for whatever a step computes. Between two of them the choice of the larger one takes up
to 5 % longer than the best: so those of the batches that most steps are of are measured, too."""
_LOADED = (
    *range(1, 513),
    *(rows + odd for rows in range(520, 1025, 8) for odd in (-1, 0)),
    *(rows + odd for rows in range(1088, 8449, 64) for odd in (-1, 0)),
)
"""Numbers of rows for which the library's kernels are loaded at start-up. Another one serves a
multiple of 8 than what lies between two of them."""
_REPEATS = 5
_MOST_LISTED = 8
"""Algorithms of cuBLASLt that are tried for a product. It rarely knows more."""
_NUM_LISTED = 2
"""Of those, as many take part when products are compared."""
_MAX_DISTINCT = 8
_DISTINCT_BYTES = 1 << 30
"""Of weights of one shape that are multiplied in a row, so that none waits in the L2."""
_LEAD = 0.99
"""Less than this share of the library's time is no noise."""
_LEAD_OF_GATED = 1.03
"""Of few rows with the gating inside. In a layer the next product's weights arrive while ours ends,
which is not seen here: at two rows a step of 32 layers takes 4,013 us, with the library's 4,288."""
_FAR = 1.15
"""So many times the least time of the first round is too much."""
_FLUSHED_BYTES = 256 * 1024 * 1024
"""Several times the L2 of any GPU: in a model every weight comes from memory."""
_FLUSHES = 6
"""While they run, the host launches all products of one measurement."""


@dataclass(frozen=True, slots=True)
class Use:
    """A weight of a model, and how it is multiplied."""

    weight: torch.Tensor
    gated: bool
    max_rows: int
    bias: torch.Tensor | None = None


@torch.inference_mode()
def measure(
    uses: Iterable[Use],
    kept: KeptChoices,
    batches: Iterable[int] = (),
    on_measuring: Callable[[], None] = lambda: None,
) -> Products:
    """What is fastest for each number of rows of each kind of weight.

    uses: of all weights of a model, on one GPU. kept: of former measurements on GPUs like this one,
    which are not repeated. batches: numbers of rows that are to be measured in any case.
    on_measuring: called before what takes seconds, so not where all was kept.
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
    sms = (
        torch.cuda.get_device_properties(device).multi_processor_count
        if cuda_wide.has_wide(device)
        else 0
    )
    return Products(chosen, sms)


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
    biased = any(use.bias is not None for use in uses)
    weights = [use.weight for use in uses]

    def read() -> dict[int, Product]:
        found = kept.read(kind, biased=biased)
        return {rows: one for rows, one in found.items() if _is_served(one, rows, weights)}

    found = read()
    if not found.keys() >= set(sizes):
        on_measuring()
        with kept.locked():
            found = read()  # another process may have measured while this one waited
            found |= _measured(sorted({*sizes} - found.keys()), kind, weights, biased=biased)
            kept.write(kind, found, biased=biased)
    choice = Choice(sizes, [found[rows] for rows in sizes])
    _load_chosen(choice, kind, uses[0])
    return choice


def _is_served(product: Product, rows: int, weights: Sequence[torch.Tensor]) -> bool:
    """Whether the library still knows the algorithm."""
    return product.name != "listed" or cublas_lt.knows(rows, weights[0], product.algorithm)


def _load_chosen(choice: Choice, kind: Kind, use: Use) -> None:
    """As ``_load_library``: what was measured by another process is new to this one."""
    x = torch.zeros(choice.rows[-1], kind.shape[1], dtype=kind.dtype, device=use.weight.device)
    for rows, product in zip(choice.rows, choice.products, strict=True):
        if product.name != "library":
            product(x[:rows], use.weight, use.bias, gated=kind.gated)


def _measured(
    sizes: Iterable[int], kind: Kind, weights: Sequence[torch.Tensor], *, biased: bool
) -> dict[int, Product]:
    device = weights[0].device
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
    found = {}
    for rows in sizes:
        listed = [] if biased else _listed(rows, kind, weights, flushed)  # they add no bias
        candidates = [*_candidates(rows, device), *listed]
        found[rows] = _fastest(candidates, rows, kind, weights, flushed)
    return found


def _up_to(max_rows: int, batches: Iterable[int]) -> Sequence[int]:
    """The numbers of rows to be measured for steps of at most ``max_rows``."""
    most = min(max_rows, MAX_CHOSEN_ROWS)
    return [*sorted(rows for rows in {*_ROWS, *batches} if rows < most), most]


def _load_library(weight: torch.Tensor, bias: torch.Tensor | None, max_rows: int) -> None:
    """Have the library load its kernels now, of which it has some for almost each number of rows,
    and others where there is a bias.

    At its first use a kernel waits until the GPU has nothing else to do: for as long as the step
    before takes, and all streams wait with it.
    """
    sizes = _LOADED[: bisect_right(_LOADED, max_rows)]
    x = torch.zeros(sizes[-1], weight.shape[1], dtype=weight.dtype, device=weight.device)
    for rows in sizes:
        F.linear(x[:rows], weight, bias)


def _candidates(rows: int, device: torch.device) -> Iterator[Product]:
    yield LIBRARY
    if rows <= cuda.MAX_SKINNY_TOKENS:
        for warps in cuda.SKINNY_WARPS:
            yield Product("skinny", warps=warps)
    elif cuda_wide.has_wide(device):
        for width in cuda_wide.WIDTHS:
            yield Product("wide", width=width)


def _listed(
    rows: int, kind: Kind, weights: Sequence[torch.Tensor], flushed: torch.Tensor
) -> list[Product]:
    """What is fastest of cuBLASLt's list; of fewer rows ours are, or nothing gains anything."""
    if rows <= cuda.MAX_SKINNY_TOKENS:
        return []
    halves, used = _operands(rows, kind, weights)
    algorithms = cublas_lt.algorithms(rows, weights[0], _MOST_LISTED)
    listed = [Product("listed", algorithm=algorithm) for algorithm in algorithms]
    times = {}
    for product in listed:
        product(ops.silu_mul(halves), used[0], None, gated=kind.gated)  # its kernel is loaded
        times[product] = _microseconds(product, halves, used, flushed, gated=kind.gated)
    return sorted(listed, key=times.__getitem__)[:_NUM_LISTED]


def _operands(
    rows: int, kind: Kind, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """What ``silu_mul`` makes the inputs of, and some distinct weights."""
    # No zeros, with which a GPU multiplies faster.
    halves = torch.randn(rows, 2 * kind.shape[1], dtype=kind.dtype, device=weights[0].device)
    return halves, weights[: min(_MAX_DISTINCT, -(-_DISTINCT_BYTES // weights[0].nbytes))]


def _fastest(
    candidates: Sequence[Product],
    rows: int,
    kind: Kind,
    weights: Sequence[torch.Tensor],
    flushed: torch.Tensor,
) -> Product:
    """By the median of some rounds in which they take turns. After the first one what is far behind
    is left out."""
    if len(candidates) == 1:
        return candidates[0]
    halves, used = _operands(rows, kind, weights)
    times: dict[Product, list[float]] = {product: [] for product in candidates}

    def measure(product: Product) -> None:
        times[product].append(_microseconds(product, halves, used, flushed, gated=kind.gated))

    for product in candidates:
        product(ops.silu_mul(halves), used[0], None, gated=kind.gated)  # what is made at first use
        measure(product)
    least = min(first for first, *_ in times.values())
    close = [p for p in candidates if times[p][0] <= _FAR * least or p == LIBRARY]
    for _ in range(_REPEATS - 1):
        for product in close:
            measure(product)
    medians = {product: sorted(times[product])[_REPEATS // 2] for product in close}
    ours = [product for product in close if product != LIBRARY]
    best = min(ours, key=medians.__getitem__, default=LIBRARY)
    lead = _LEAD_OF_GATED if kind.gated and best.name == "skinny" else _LEAD
    return best if medians[best] < lead * medians[LIBRARY] else LIBRARY


def _microseconds(
    product: Product,
    halves: torch.Tensor,
    weights: Sequence[torch.Tensor],
    flushed: torch.Tensor,
    *,
    gated: bool,
) -> float:
    """Of a row of products with different weights, each behind a small kernel as in a model: ours
    load their first weights while it runs, the library's do not."""
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    for _ in range(_FLUSHES):
        flushed.zero_()
    start.record()
    for weight in weights:
        product(ops.silu_mul(halves), weight, None, gated=gated)
    end.record()
    end.synchronize()
    microseconds: float = start.elapsed_time(end) * 1e3
    return microseconds
