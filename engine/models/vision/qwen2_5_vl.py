"""The encoder of Qwen2.5-VL (arXiv 2502.13923): most layers see a window of the picture only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.images.processor import Normalization
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from engine.models.vision.base import (
    Attention,
    Count,
    GatedFeedForward,
    PatchEmbedding,
    PatchReader,
    Pictures,
    Rotation,
    Segments,
    TwoProducts,
    VisionEncoder,
    check_activation,
    check_heads,
    frequencies,
)
from kernels.transfer import to_device

_EPS = 1e-6


class VisionConfig(msgspec.Struct, kw_only=True):
    """Defaults are those of transformers."""

    depth: Count = 32
    hidden_size: Count = 3584
    hidden_act: str = "silu"
    intermediate_size: Count = 3420
    num_heads: Count = 16
    patch_size: Count = 14
    spatial_merge_size: Count = 2
    temporal_patch_size: Count = 2
    window_size: Count = 112
    out_hidden_size: Count = 3584
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    rope_parameters: dict[str, Any] | None = None

    @property
    def window(self) -> int:
        """Tokens of a side."""
        return self.window_size // self.spatial_merge_size // self.patch_size


class ConfigFile(msgspec.Struct, kw_only=True):
    vision_config: VisionConfig

    def check(self) -> None:
        vision = self.vision_config
        check_activation("vision_config.hidden_act", vision.hidden_act)
        check_heads(vision.hidden_size, vision.num_heads)
        if vision.window < 1:
            raise ValueError(
                f"vision_config.window_size: {vision.window_size} pixels are less than a token"
            )


class _Attention(Attention):
    names: ClassVar = {"out": "proj"}


class Layer(Module):
    def __init__(self, config: VisionConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        size, heads = config.hidden_size, config.num_heads
        self.norm1 = RMSNorm(size, _EPS, dtype=dtype, device=device)
        self.norm2 = RMSNorm(size, _EPS, dtype=dtype, device=device)
        self.attn = _Attention(size, heads, [""], bias=True, dtype=dtype, device=device)
        self.mlp = GatedFeedForward(
            size,
            config.intermediate_size,
            config.hidden_act,
            bias=True,
            dtype=dtype,
            device=device,
        )

    def __call__(self, x: torch.Tensor, segments: Segments, rotation: Rotation) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), segments, rotation)
        return x + self.mlp(self.norm2(x))


class Merger(TwoProducts):
    """Makes neighbouring patches one token."""

    names: ClassVar = {"up": "mlp.0", "down": "mlp.2"}

    def __init__(self, config: VisionConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self._size = config.hidden_size * config.spatial_merge_size**2
        sizes = self._size, self._size, config.out_hidden_size
        super().__init__(sizes, "gelu", dtype=dtype, device=device)
        self.ln_q = RMSNorm(config.hidden_size, _EPS, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(self.ln_q(x).view(-1, self._size))


class Encoder(VisionEncoder):
    file_class = ConfigFile
    prefixes = ("model.visual.", "visual.")
    names: ClassVar = {"embed": "patch_embed.proj"}

    def __init__(
        self,
        file: ConfigFile,
        normalization: Normalization,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        config = file.vision_config
        self._config = config
        side, frames = config.patch_size, config.temporal_patch_size
        self._reader = PatchReader(
            normalization,
            side=side,
            merge=config.spatial_merge_size,
            frames=frames,
            dtype=dtype,
            device=device,
        )
        theta = (config.rope_parameters or {}).get("rope_theta", 10000.0)
        head_dim = config.hidden_size // config.num_heads
        self._frequencies = frequencies(theta, head_dim // 2).to(device)
        self.embed = PatchEmbedding(
            config.hidden_size, (frames, side, side), bias=False, dtype=dtype, device=device
        )
        self.blocks = [Layer(config, dtype=dtype, device=device) for _ in range(config.depth)]
        self.merger = Merger(config, dtype=dtype, device=device)

    def __call__(self, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pictures = Pictures(images, self._reader)
        merge = self._config.spatial_merge_size
        order, lens = _windows(pictures.grids, merge, self._config.window)
        windows = Segments([length * merge**2 for length in lens])
        by_window = to_device(order, pictures.patches.device)
        patches = (by_window[:, None] * merge**2 + torch.arange(merge**2).to(by_window)).flatten()
        row, column = pictures.positions()
        rotation = Rotation(row[patches], column[patches], self._frequencies, self._frequencies)
        x = self.embed(pictures.patches[patches])
        for number, layer in enumerate(self.blocks):
            is_full = number in self._config.fullatt_block_indexes
            x = layer(x, pictures.segments if is_full else windows, rotation)
        merged = self.merger(x)
        return pictures.split(torch.empty_like(merged).index_copy_(0, by_window, merged))


def _windows(
    grids: Sequence[tuple[int, int]], merge: int, side: int
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """The tokens of all pictures in an order in which those of a window are neighbours, and windows
    of equal size within a picture are too; and the tokens of each window.

    grids: rows and columns of patches. side: of a window, in tokens."""
    orders, lens, start = [], [], 0
    for rows, columns in grids:
        row, column = np.divmod(np.arange(rows // merge * (columns // merge)), columns // merge)
        window = row // side * (columns // merge) + column // side
        sizes = np.bincount(window)
        order = np.lexsort((window, -sizes[window]))
        first = np.flatnonzero(np.diff(window[order], prepend=-1))
        lens += sizes[window[order][first]].tolist()
        orders.append(order + start)
        start += len(order)
    return np.concatenate(orders), lens
