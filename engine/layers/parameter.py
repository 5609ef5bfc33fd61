"""Weights that know which parts of a checkpoint they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

Index = slice | tuple[int, slice] | tuple[slice, slice]


class Weight:
    """A parameter made of ``parts``: ranges of its first dimension, by checkpoint name.

    A fused QKV weight, say, has the parts q_proj, k_proj and v_proj; a plain one has the part "".
    """

    __slots__ = ("_unallocated", "data", "parts")
    _unallocated: tuple[torch.Size, torch.dtype, torch.device]

    def __init__(self, data: torch.Tensor, parts: Mapping[str, int] | None = None) -> None:
        """parts: rows of each part, in order; None: the whole is one part."""
        self.data = data
        self.parts: dict[str, Index] = dict(_ranges(parts or {"": data.shape[0]}))

    @classmethod
    def empty(
        cls,
        shape: Sequence[int],
        parts: Mapping[str, int] | None = None,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Weight:
        """A weight whose memory is allocated at first use: a smaller, quantized one may replace it
        before."""
        weight = cls(torch.empty(shape, device="meta"), parts)
        del weight.data
        weight._unallocated = torch.Size(shape), dtype, device
        return weight

    def __getattr__(self, name: str) -> torch.Tensor:
        """Allocates ``data`` on first use: Python calls this only for attributes that are not
        set."""
        if name != "data":
            raise AttributeError(name)
        shape, dtype, device = self._unallocated
        with torch.inference_mode(False):  # usable outside of that mode, too
            self.data = torch.empty(shape, dtype=dtype, device=device)
        return self.data

    @classmethod
    def stacked(
        cls,
        shape: Sequence[int],
        parts: Mapping[str, int],
        first: int = 0,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Weight:
        """As ``empty``, for several equal weights. shape: [count, rows, ...], each with the
        ``parts``, named "0.gate_proj", ... first: the number of the first."""
        weight = cls.empty(shape, dtype=dtype, device=device)
        weight.parts = {
            f"{first + i}.{name}": (i, rows)
            for i in range(shape[0])
            for name, rows in _ranges(parts).items()
        }
        return weight

    @classmethod
    def by_column(cls, data: torch.Tensor, parts: Mapping[str, int]) -> Weight:
        """A weight whose parts are ranges of columns. data: [rows, columns]; parts: columns of each
        part, in order."""
        weight = cls(data)
        weight.parts = {name: (slice(None), columns) for name, columns in _ranges(parts).items()}
        return weight

    def part(self, name: str) -> torch.Tensor:
        """The view that the checkpoint's tensor is copied to. Raises ``KeyError`` for an unknown
        part."""
        return self.data[self.parts[name]]

    def shapes(self, part: str) -> list[list[int]]:
        """The shapes that the checkpoint's tensor may have, the usual one first."""
        return [list(self.part(part).shape)]

    def is_cut(self, part: str, dim: int) -> bool:
        """Whether a block that shares a number reaches beyond the end of the part, so that another
        rank would need it, too."""
        return False

    @property
    def stored_dtype(self) -> torch.dtype | None:
        """The dtype that the checkpoint's tensor must have; None: any float, to be converted."""
        dtype = self.data.dtype
        return None if dtype.is_floating_point and dtype.itemsize > 1 else dtype

    def load(self, part: str, tensor: torch.Tensor) -> None:
        """Copy ``tensor``, of one of ``shapes``, converting it to the parameter's dtype and
        device."""
        place = self.part(part)
        assert place.shape == tensor.shape, (place.shape, tensor.shape)
        place.copy_(tensor)

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        """Fill matrices with normally distributed values, vectors (norms, biases) with ones."""
        if self.data.dim() == 1:
            self.data.fill_(1)
        else:
            self.data.normal_(0, deviation, generator=generator)


def _ranges(parts: Mapping[str, int]) -> dict[str, slice]:
    ranges, start = {}, 0
    for name, rows in parts.items():
        ranges[name] = slice(start, start + rows)
        start += rows
    return ranges
