"""The interface of vision encoders, and what they are made of.

The pictures of a call are computed together: their patches lie side by side, and attention stays
within a picture or a window of it. Patches are in the order of tokens throughout: those that one
token is made of are next to each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar

import msgspec
import torch
from torch.nn import functional as F

from engine.images.processor import Normalization
from engine.layers.encoder import ACTIVATIONS
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.parameter import Weight

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]

_INNER_MULTIPLE = 8
"""See ``GatedFeedForward.pack``."""


class VisionEncoder(Module, ABC):
    """Of a checkpoint that sees. On several ranks, each has all of it."""

    file_class: ClassVar[type[Any]]
    """The fields of config.json that it is built from, a ``msgspec.Struct`` whose method ``check``
    raises ``ValueError`` for what is not computed here."""
    prefixes: ClassVar[Sequence[str]]
    """Of its tensors in checkpoints; what follows is the parameter's name."""
    unneeded: ClassVar[Sequence[str]] = ()
    """Beginnings of names, behind the prefix, of tensors that are not the encoder's, or that
    nothing here needs."""

    @abstractmethod
    def __init__(
        self, file: Any, normalization: Normalization, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Creates the weights without values. file: of ``file_class``."""

    @abstractmethod
    def __call__(self, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The embeddings of each picture, [image tokens, ``out_size``] in the encoder's dtype.

        images: uint8, [height, width, 3] each, in RGB and of sizes that the family's
        ``ImageProcessor`` makes; on any device."""

    def place_of(self, name: str) -> str | None:
        """The parameter that the checkpoint's tensor ``name`` belongs to; None if the encoder has
        no need of it."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                name = name.removeprefix(prefix)
                return None if name.startswith(tuple(self.unneeded)) else name
        return None


class Pictures:
    """The patches of a step's pictures, the smallest picture first."""

    def __init__(self, images: Sequence[torch.Tensor], patches: PatchReader) -> None:
        side, merge = patches.side, patches.merge
        self._order = sorted(range(len(images)), key=lambda i: images[i].shape[:2].numel())
        ordered = [images[i].to(patches.device, non_blocking=True) for i in self._order]
        self.grids = [(len(x) // side, x.shape[1] // side) for x in ordered]
        """Rows and columns of the patches of each picture."""
        self.patches = patches([blocked(_patches(x, side), merge) for x in ordered])
        """[num_patches, values], normalized."""
        self.segments = Segments([rows * columns for rows, columns in self.grids])
        """The pictures."""
        self._merged = merge * merge

    def positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The row and the column of each patch in its picture: [num_patches] float32."""
        device, merge = self.patches.device, round(self._merged**0.5)
        both = []
        for rows, columns in self.grids:
            row = torch.arange(rows, dtype=torch.float32, device=device)
            column = torch.arange(columns, dtype=torch.float32, device=device)
            grid = torch.stack(torch.meshgrid(row, column, indexing="ij"), -1)
            both.append(blocked(grid, merge))
        row, column = torch.cat(both).unbind(-1)
        return row, column

    def split(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """What belongs to each picture, in the order in which they came. tokens: [num_patches /
        merge ** 2, ...]."""
        sizes = [rows * columns // self._merged for rows, columns in self.grids]
        parts = torch.split(tokens, sizes)
        places = sorted(range(len(parts)), key=self._order.__getitem__)
        return [parts[place] for place in places]


class PatchReader:
    """From bytes to what the first product of an encoder takes."""

    def __init__(
        self,
        normalization: Normalization,
        *,
        side: int,
        merge: int,
        frames: int = 1,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """side: of a patch, in pixels. merge: patches a side of a token. frames: how often a
        picture stands in a patch, as if it were a video."""
        self.side, self.merge, self.device = side, merge, device
        self._frames = frames
        self._table = torch.from_numpy(normalization.table().flatten()).to(device, dtype)
        self._offsets = torch.arange(0, 768, 256, dtype=torch.int32, device=device).view(3, 1)

    def __call__(self, patches: Sequence[torch.Tensor]) -> torch.Tensor:
        """[num_patches, 3 * frames * side ** 2]. patches: uint8, [n, side ** 2, 3] each."""
        pixels = torch.cat(list(patches)).transpose(1, 2)
        values = self._table[pixels.int() + self._offsets].unsqueeze(2)
        return values.expand(-1, -1, self._frames, -1).flatten(1)


def _patches(picture: torch.Tensor, side: int) -> torch.Tensor:
    """[rows, columns, side ** 2, 3] of a picture, [height, width, 3]."""
    height, width, channels = picture.shape
    cut = picture.view(height // side, side, width // side, side, channels)
    return cut.transpose(1, 2).flatten(2, 3)


def blocked(grid: torch.Tensor, merge: int) -> torch.Tensor:
    """[rows * columns, ...] of [rows, columns, ...]: squares of ``merge`` a side one after the
    other."""
    rows, columns, *rest = grid.shape
    squares = grid.reshape(rows // merge, merge, columns // merge, merge, *rest)
    return squares.transpose(1, 2).flatten(0, 3)


class Segments:
    """Ranges of patches that see each other and nothing else."""

    def __init__(self, lens: Sequence[int]) -> None:
        """lens: of all that lie side by side. Equal ones are computed together if they are
        neighbours."""
        self._groups = [(length, len(list(run))) for length, run in groupby(lens)]

    def attend(self, qkv: torch.Tensor, scale: float) -> torch.Tensor:
        """[num_patches, num_heads * head_dim]. qkv: [3, num_patches, num_heads, head_dim]."""
        outs = []
        parts = torch.split(qkv, [length * count for length, count in self._groups], 1)
        for (length, count), part in zip(self._groups, parts, strict=True):
            q, k, v = part.view(3, count, length, *part.shape[2:]).transpose(2, 3)
            out = F.scaled_dot_product_attention(q, k, v, scale=scale)
            outs.append(out.transpose(1, 2).flatten(0, 1).flatten(1))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


class Rotation:
    """Rotary embedding by row and column (arXiv 2410.07073, 2409.12191)."""

    def __init__(
        self,
        row: torch.Tensor,
        column: torch.Tensor,
        row_frequencies: torch.Tensor,
        column_frequencies: torch.Tensor,
    ) -> None:
        """row, column: [num_patches] float32; frequencies: [head_dim / 4] float32 each."""
        angles = torch.cat(
            [row[:, None] * row_frequencies, column[:, None] * column_frequencies], 1
        )
        self._cos, self._sin = angles.cos()[:, None, None], angles.sin()[:, None, None]

    def turn(self, x: torch.Tensor) -> None:
        """In place, computed in float32. x: [num_patches, 2, num_heads, head_dim]."""
        first, second = x.chunk(2, -1)
        turned = (first * self._cos).addcmul_(second, self._sin, value=-1)
        other = (second * self._cos).addcmul_(first, self._sin)
        first.copy_(turned)
        second.copy_(other)


def frequencies(theta: float, dim: int) -> torch.Tensor:
    """[dim / 2] float32"""
    return theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)


class Attention(Module):
    """In both directions, with one key and value head for each query head. ``names`` of families
    say what their checkpoints call ``out``."""

    def __init__(
        self,
        size: int,
        num_heads: int,
        parts: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """parts: the checkpoint's names of the products; "" for one that has all."""
        self._num_heads, self._scale = num_heads, (size // num_heads) ** -0.5
        features = {name: 3 * size // len(parts) for name in parts}
        self.qkv = Linear(size, features, bias=bias, dtype=dtype, device=device)
        self.out = Linear(size, {"": size}, bias=bias, dtype=dtype, device=device)

    def __call__(
        self, x: torch.Tensor, segments: Segments, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[num_patches, size], as x."""
        qkv = self.qkv(x).view(len(x), 3, self._num_heads, -1)
        if rotation is not None:
            rotation.turn(qkv[:, :2])
        return self.out(segments.attend(qkv.transpose(0, 1), self._scale))


class TwoProducts(Module):
    """``down(act(up(x)))``. ``names`` of families say what their checkpoints call the products."""

    def __init__(
        self,
        sizes: tuple[int, int, int],
        activation: str,
        *,
        bias: bool = True,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """sizes: of the input, between the products, and of the output."""
        self._activation = ACTIVATIONS[activation]
        size, inner, out = sizes
        self.up = Linear(size, {"": inner}, bias=bias, dtype=dtype, device=device)
        self.down = Linear(inner, {"": out}, bias=bias, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self._activation(self.up(x)))


class GatedFeedForward(Module):
    """``down(act(gate(x)) * up(x))``, as ``GatedMLP`` with any activation."""

    def __init__(
        self,
        size: int,
        inner: int,
        activation: str,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._activation, self._is_silu = ACTIVATIONS[activation], activation == "silu"
        parts = {"gate_proj": inner, "up_proj": inner}
        self.gate_up_proj = Linear(size, parts, bias=bias, dtype=dtype, device=device)
        self.down_proj = Linear(inner, {"": size}, bias=bias, dtype=dtype, device=device)

    def pack(self) -> None:
        """Also fill the inner vectors up with zeros: products of rows that are no multiple of 16
        bytes are slow on GPUs, and Qwen2.5-VL's 3420 numbers are none."""
        up, down = self.gate_up_proj, self.down_proj
        missing = -down.in_features % _INNER_MULTIPLE
        if missing:
            for weight in (up.weight, up.bias):
                if weight is not None:
                    halves = weight.data.chunk(2)
                    zeros = weight.data.new_zeros(missing, *weight.data.shape[1:])
                    weight.data = torch.cat([halves[0], zeros, halves[1], zeros])
            down.weight.data = F.pad(down.weight.data, (0, missing))
            down.in_features += missing
        super().pack()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_silu:
            return self.down_proj(self.gate_up_proj.gated(x))
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(self._activation(gate).mul_(up))


class PatchEmbedding(Module):
    """The convolution that makes a patch a vector, as a product."""

    def __init__(
        self,
        size: int,
        kernel: tuple[int, ...],
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """kernel: of the checkpoint's convolution of 3 channels, which meets each patch once."""
        self.weight = Weight.empty((size, 3, *kernel), dtype=dtype, device=device)
        self.bias = Weight.empty((size,), dtype=dtype, device=device) if bias else None

    def __call__(self, patches: torch.Tensor) -> torch.Tensor:
        """[num_patches, size]. patches: [num_patches, 3 * kernel]."""
        bias = None if self.bias is None else self.bias.data
        return F.linear(patches, self.weight.data.flatten(1), bias)


def check_activation(field: str, name: str) -> None:
    """Raises ``ValueError``."""
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"{field}: {name!r} is not supported, only {known}")


def check_heads(size: int, num_heads: int, divisor: int = 4) -> None:
    """Raises ``ValueError``. divisor: of the size of a head."""
    if size % num_heads or size // num_heads % divisor:
        raise ValueError(
            f"vision_config.hidden_size: {size} is not {num_heads} heads of a multiple of {divisor}"
        )
