"""GEMMs with weights: cuBLAS's, or our own where that was measured to be faster.

There are three ways to multiply:

* *library*: ``torch.nn.functional.linear``, for which cuBLAS chooses an algorithm;
* *skinny*: our kernel for up to 16 rows, which is bound by reading the weight;
* *wide*: our kernel for more rows on Hopper (``wide_linear``).

``tuning.measure`` compares them on the weights of a model; without it, the library is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F

from kernels import ops
from kernels.cuda import native

MAX_CHOSEN_ROWS = 1024
"""The most rows for which GEMMs are measured. With more rows the GPU's power limit decides, and
no other is much faster than the library's; except for gated wide ones, which save
writing and reading the ungated result."""
_LEAST_FILLED = 0.98
"""With a smaller part of the square tiles filled (``square_tiles_filled``), the library's GEMM
is as fast, because it has tiles of other sizes."""


WIDE_WIDTHS = (192, 224, 256)
"""Features of a tile. With narrower tiles, fewer SMs are left without work in the last wave."""
SQUARE = 192
"""Tokens and features of the square tiles for more than 1,024 tokens. Of all tiles that fit, these
load the fewest operands, and so take the least power."""


def has_wide(device: torch.device) -> bool:
    """Whether ``wide_linear`` serves this GPU."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def takes(x: torch.Tensor) -> bool:
    """Whether TMA, the copy engine, can read these rows."""
    whole = x.dim() == 2 and x.stride(1) == 1 and x.stride(0) % 8 == 0
    return whole and x.data_ptr() % 16 == 0


def square_tiles_filled(tokens: int, features: int, num_sms: int) -> float:
    """The useful part of what all SMs compute, in [0, 1], for more than 1,024 tokens in tiles of
    ``SQUARE``: the rest is padding of tiles, and SMs without a tile in the last wave. A pair of SMs
    takes two tiles at a time."""
    pairs = num_sms // 2
    tiles = -(-tokens // (2 * SQUARE)) * -(-features // SQUARE)
    return tokens * features / (-(-tiles // pairs) * pairs * 2 * SQUARE**2)


class Kind(NamedTuple):
    """What a GEMM is chosen by, beside the number of rows. (A ``NamedTuple``, because it is looked
    up for each GEMM of a step, and a dataclass is hashed more slowly.)"""

    shape: torch.Size
    dtype: torch.dtype
    gated: bool


@dataclass(frozen=True, slots=True)
class Gemm:
    """One way to multiply, see above."""

    name: Literal["library", "skinny", "wide"]
    shape: int = 0
    """Warps of a CTA of a skinny GEMM, features of a tile of a wide one."""

    @property
    def code(self) -> int:
        """See ``Gemms.code``."""
        return _CODES[self.name] + self.shape

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, gated: bool
    ) -> torch.Tensor:
        out: torch.Tensor
        match self.name:
            case "skinny":
                out = native.skinny_linear(x, weight, bias, self.shape, gated)
            case "wide" if takes(x):
                out = native.wide_linear(x, weight, bias, self.shape, gated)
            case _:
                out = F.linear(x, weight, bias)
                out = ops.silu_mul(out) if gated else out
        return out


LIBRARY = Gemm("library")
_SQUARE = Gemm("wide", SQUARE)
_CODES = {"library": 0, "skinny": 1024, "wide": 2048}
"""As ``own_gemm`` in ``csrc/binding/layer.cpp`` reads them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest GEMM for each measured number of rows. It is used for smaller numbers as well,
    down to the next measured one."""

    rows: Sequence[int]
    gemms: Sequence[Gemm]

    def gemm(self, rows: int) -> Gemm:
        place = bisect_left(self.rows, rows)
        return LIBRARY if place == len(self.rows) else self.gemms[place]


class Gemms:
    """Multiplies with the GEMM that was chosen for a kind of weight and a number of rows."""

    def __init__(self, chosen: Mapping[Kind, Choice], num_wide_sms: int = 0) -> None:
        """num_wide_sms: SMs of the GPU, if it supports the wide GEMM, else 0."""
        self._chosen = chosen
        self._num_wide_sms = num_wide_sms
        self._codes: dict[tuple[int, torch.Size, torch.dtype, bool], int] = {}

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """``x @ weight.T + bias``; x: [rows, k], weight: [features, k]."""
        return self._gemm(x.shape[0], weight, gated=False)(x, weight, bias, gated=False)

    def gated_linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """``silu_mul`` of ``linear``: the features are [gate | up]."""
        return self._gemm(x.shape[0], weight, gated=True)(x, weight, bias, gated=True)

    def code(self, rows: int, weight: torch.Tensor, *, gated: bool = False) -> int:
        """The GEMM for this number of contiguous rows, as ``cuda_layer`` takes it."""
        if rows > MAX_CHOSEN_ROWS:
            return self._gemm(rows, weight, gated=gated).code
        asked = rows, weight.shape, weight.dtype, gated
        code = self._codes.get(asked)
        if code is None:
            code = self._codes[asked] = self._gemm(rows, weight, gated=gated).code
        return code

    def _gemm(self, rows: int, weight: torch.Tensor, *, gated: bool) -> Gemm:
        choice = self._chosen.get(Kind(weight.shape, weight.dtype, gated))
        if choice is None:
            return LIBRARY
        if rows <= MAX_CHOSEN_ROWS:
            return choice.gemm(rows)
        if not gated or not self._num_wide_sms:
            return LIBRARY
        filled = square_tiles_filled(rows, weight.shape[0], self._num_wide_sms)
        return _SQUARE if filled >= _LEAST_FILLED else LIBRARY


UNMEASURED = Gemms({})
