"""Matrix products with weights: the library's, or one of our own where it measured faster.

``tuning.measure`` tries them on the weights of a model; where it has not, the library serves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F

from kernels import cublas_lt, cuda, cuda_wide, ops

MAX_CHOSEN_ROWS = 1024
"""Of more, a product takes as long as its energy allows, and no listed one takes much less than the
library's. Tiles that gate do: nobody has to read and write again what they make."""
_LEAST_FILLED = 0.98
"""Of square tiles. With less of them filled, the library's, of other sizes, are as fast."""


class Kind(NamedTuple):
    """What products are chosen by. Looked up for every product of a step: no dataclass is hashed as
    fast."""

    shape: torch.Size
    dtype: torch.dtype
    gated: bool


@dataclass(frozen=True, slots=True)
class Product:
    """One way to multiply."""

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


LIBRARY = Product("library")
_SQUARE = Product("wide", width=cuda_wide.SQUARE)


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest product for each measured number of rows, which holds for those below it, too."""

    rows: Sequence[int]
    products: Sequence[Product]

    def product(self, rows: int) -> Product:
        place = bisect_left(self.rows, rows)
        return LIBRARY if place == len(self.rows) else self.products[place]


class Products:
    """Those that serve the layers of a model."""

    def __init__(self, chosen: Mapping[Kind, Choice], num_wide_sms: int = 0) -> None:
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
        if rows > MAX_CHOSEN_ROWS:
            return self._product(rows, weight, gated=gated).code
        asked = rows, weight.shape, weight.dtype, gated
        code = self._codes.get(asked)
        if code is None:
            code = self._codes[asked] = self._product(rows, weight, gated=gated).code
        return code

    def _product(self, rows: int, weight: torch.Tensor, *, gated: bool) -> Product:
        choice = self._chosen.get(Kind(weight.shape, weight.dtype, gated))
        if choice is None:
            return LIBRARY
        if rows <= MAX_CHOSEN_ROWS:
            return choice.product(rows)
        if not gated or not self._num_wide_sms:
            return LIBRARY
        filled = cuda_wide.square_tiles_filled(rows, weight.shape[0], self._num_wide_sms)
        return _SQUARE if filled >= _LEAST_FILLED else LIBRARY


UNMEASURED = Products({})
