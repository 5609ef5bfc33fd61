"""Matrix products with weights: the library's, or one of our own where it measured faster.

``measure`` tries them on the weights of a model; where it has not, the library serves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F

from kernels import cublas_lt, cuda, cuda_wide, ops

_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, *range(128, 513, 64), 640, 768, 896, 1024)
"""Of more, a product takes as long as its energy allows, and no listed one takes much less than the
library's. Tiles that gate do: nobody has to read and write again what they make."""
_LEAST_FILLED = 0.98
"""Of square tiles. With less of them filled, the library's, of other sizes, are as fast."""
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
_LEAD = 0.98
"""Less than this share of the library's time is no noise."""
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


class _Kind(NamedTuple):
    """What products are chosen by. Looked up for every product of a step: no dataclass is hashed as
    fast."""

    shape: torch.Size
    dtype: torch.dtype
    gated: bool


@dataclass(frozen=True, slots=True)
class _Product:
    name: Literal["library", "listed", "skinny", "wide"]
    warps: int = 8
    """Of a skinny product's CTA."""
    width: int = 256
    """Of a wide product's tile."""
    algorithm: cublas_lt.Algorithm = b""
    """Of a product that cuBLASLt lists."""

    @property
    def code(self) -> int:
        """See ``Products.code``."""
        return {"skinny": self.warps, "wide": self.width}.get(self.name, 0)

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, gated: bool
    ) -> torch.Tensor:
        match self.name:
            case "skinny":
                return cuda.skinny_linear(x, weight, bias, gated=gated, warps=self.warps)
            case "wide" if cuda_wide.takes(x):
                return cuda_wide.wide_linear(x, weight, bias, gated=gated, width=self.width)
            case "listed" if bias is None and cublas_lt.takes(x, weight, self.algorithm):
                out = cublas_lt.linear(x, weight, self.algorithm)
            case _:
                out = F.linear(x, weight, bias)
        return ops.silu_mul(out) if gated else out


_LIBRARY = _Product("library")
_SQUARE = _Product("wide", width=cuda_wide.SQUARE)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The fastest product for each measured number of rows, which holds for those below it, too."""

    rows: list[int] = field(default_factory=list)
    products: list[_Product] = field(default_factory=list)

    def add(self, rows: int, product: _Product) -> None:
        self.rows.append(rows)
        self.products.append(product)

    def product(self, rows: int) -> _Product:
        place = bisect_left(self.rows, rows)
        return _LIBRARY if place == len(self.rows) else self.products[place]


class Products:
    """Those that serve the layers of a model."""

    def __init__(self, chosen: Mapping[_Kind, _Choice], num_wide_sms: int = 0) -> None:
        """num_wide_sms: of the GPU, if the wide product serves it."""
        self._chosen = chosen
        self._num_wide_sms = num_wide_sms
        self._codes: dict[tuple[int, torch.Size, torch.dtype, bool], int] = {}

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """``x @ weight.T + bias``; x: [rows, k], weight: [features, k]."""
        return self._product(x.shape[0], weight, gated=False)(x, weight, bias, gated=False)

    def gated_linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """``silu_mul`` of ``linear``: the features are [gate | up]."""
        return self._product(x.shape[0], weight, gated=True)(x, weight, bias, gated=True)

    def code(self, rows: int, weight: torch.Tensor, *, gated: bool = False) -> int:
        """Which product serves so many contiguous rows, as ``bind_layer.cpp`` has it: 0 the
        library's, as it would choose itself, up to 16 a skinny one of so many warps, else a wide
        one of this width."""
        if rows > _ROWS[-1]:
            return self._product(rows, weight, gated=gated).code
        asked = rows, weight.shape, weight.dtype, gated
        code = self._codes.get(asked)
        if code is None:
            code = self._codes[asked] = self._product(rows, weight, gated=gated).code
        return code

    def _product(self, rows: int, weight: torch.Tensor, *, gated: bool) -> _Product:
        choice = self._chosen.get(_Kind(weight.shape, weight.dtype, gated))
        if choice is None:
            return _LIBRARY
        if rows <= _ROWS[-1]:
            return choice.product(rows)
        if not gated or not self._num_wide_sms:
            return _LIBRARY
        filled = cuda_wide.square_tiles_filled(rows, weight.shape[0], self._num_wide_sms)
        return _SQUARE if filled >= _LEAST_FILLED else _LIBRARY


UNMEASURED = Products({})


@torch.inference_mode()
def measure(uses: Iterable[Use]) -> Products:
    """What is fastest for each number of rows of each kind of weight.

    uses: of all weights of a model, on one GPU.
    """
    by_kind: dict[_Kind, list[Use]] = defaultdict(list)
    for use in uses:
        features, k = use.weight.shape
        if use.weight.dtype in cuda.DECODE_DTYPES and features % 16 == 0 == k % 64:
            kind = _Kind(use.weight.shape, use.weight.dtype, use.gated)
            by_kind[kind].append(use)
    if not by_kind:
        return UNMEASURED
    device = next(iter(by_kind.values()))[0].weight.device
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
    chosen: dict[_Kind, _Choice] = defaultdict(_Choice)
    for kind, some in by_kind.items():
        weights = [use.weight for use in some]
        max_rows = max(use.max_rows for use in some)
        sizes = _up_to(max_rows)
        for use in {use.bias is None: use for use in some}.values():
            _load_library(use.weight, use.bias, max_rows)
        has_bias = any(use.bias is not None for use in some)  # which no listed product adds
        for rows in sizes:
            listed = [] if has_bias else _listed(rows, kind, weights, flushed)
            candidates = [*_candidates(rows, device), *listed]
            chosen[kind].add(rows, _fastest(candidates, rows, kind, weights, flushed))
    sms = (
        torch.cuda.get_device_properties(device).multi_processor_count
        if cuda_wide.has_wide(device)
        else 0
    )
    return Products(dict(chosen), sms)


def _up_to(max_rows: int) -> Sequence[int]:
    """The numbers of rows to be measured for steps of at most ``max_rows``."""
    most = min(max_rows, _ROWS[-1])
    return [*(rows for rows in _ROWS if rows < most), most]


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


def _candidates(rows: int, device: torch.device) -> Iterator[_Product]:
    yield _LIBRARY
    if rows <= cuda.MAX_SKINNY_TOKENS:
        for warps in cuda.SKINNY_WARPS:
            yield _Product("skinny", warps=warps)
    elif cuda_wide.has_wide(device):
        for width in cuda_wide.WIDTHS:
            yield _Product("wide", width=width)


def _listed(
    rows: int, kind: _Kind, weights: Sequence[torch.Tensor], flushed: torch.Tensor
) -> list[_Product]:
    """What is fastest of cuBLASLt's list; of fewer rows ours are, or nothing gains anything."""
    if rows <= cuda.MAX_SKINNY_TOKENS:
        return []
    halves, used = _operands(rows, kind, weights)
    algorithms = cublas_lt.algorithms(rows, weights[0], _MOST_LISTED)
    listed = [_Product("listed", algorithm=algorithm) for algorithm in algorithms]
    times = {}
    for product in listed:
        product(ops.silu_mul(halves), used[0], None, gated=kind.gated)  # its kernel is loaded
        times[product] = _microseconds(product, halves, used, flushed, gated=kind.gated)
    return sorted(listed, key=times.__getitem__)[:_NUM_LISTED]


def _operands(
    rows: int, kind: _Kind, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """What ``silu_mul`` makes the inputs of, and some distinct weights."""
    # No zeros, with which a GPU multiplies faster.
    halves = torch.randn(rows, 2 * kind.shape[1], dtype=kind.dtype, device=weights[0].device)
    return halves, weights[: min(_MAX_DISTINCT, -(-_DISTINCT_BYTES // weights[0].nbytes))]


def _fastest(
    candidates: Sequence[_Product],
    rows: int,
    kind: _Kind,
    weights: Sequence[torch.Tensor],
    flushed: torch.Tensor,
) -> _Product:
    """By the median of some rounds in which they take turns."""
    if len(candidates) == 1:
        return candidates[0]
    halves, used = _operands(rows, kind, weights)
    times: dict[_Product, list[float]] = {product: [] for product in candidates}
    for product in candidates:
        product(ops.silu_mul(halves), used[0], None, gated=kind.gated)  # what is made at first use
    for _ in range(_REPEATS):
        for product in candidates:
            times[product].append(_microseconds(product, halves, used, flushed, gated=kind.gated))
    medians = {product: sorted(times[product])[_REPEATS // 2] for product in candidates}
    best = min(candidates, key=medians.__getitem__)
    return best if medians[best] < _LEAD * medians[_LIBRARY] else _LIBRARY


def _microseconds(
    product: _Product,
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
