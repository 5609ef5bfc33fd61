"""The encoder of Qwen3-VL (arXiv 2511.21631): full attention, positions both interpolated from a
learned grid and rotary, and the states of some layers for the first layers of the text model
("deepstack")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import torch

from engine.images.processor import Normalization
from engine.layers.encoder import LayerNorm
from engine.layers.module import Module
from engine.layers.parameter import Weight
from engine.models.vision.base import (
    Attention,
    Count,
    PatchEmbedding,
    PatchReader,
    Pictures,
    Rotation,
    Segments,
    TwoProducts,
    VisionEncoder,
    blocked,
    check_activation,
    check_heads,
    frequencies,
)

_EPS = 1e-6


class VisionConfig(msgspec.Struct, kw_only=True):
    """Defaults are those of transformers."""

    depth: Count = 27
    hidden_size: Count = 1152
    hidden_act: str = "gelu_pytorch_tanh"
    intermediate_size: Count = 4304
    num_heads: Count = 16
    patch_size: Count = 16
    spatial_merge_size: Count = 2
    temporal_patch_size: Count = 2
    out_hidden_size: Count = 3584
    num_position_embeddings: Count = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    rope_parameters: dict[str, Any] | None = None


class ConfigFile(msgspec.Struct, kw_only=True):
    vision_config: VisionConfig

    def check(self) -> None:
        vision = self.vision_config
        check_activation("vision_config.hidden_act", vision.hidden_act)
        check_heads(vision.hidden_size, vision.num_heads)
        for layer in vision.deepstack_visual_indexes:
            if not 0 <= layer < vision.depth:
                raise ValueError(
                    f"vision_config.deepstack_visual_indexes: {layer} is none of {vision.depth}"
                    " layers"
                )


class _Attention(Attention):
    names: ClassVar = {"out": "proj"}


class _FeedForward(TwoProducts):
    names: ClassVar = {"up": "linear_fc1", "down": "linear_fc2"}


class Layer(Module):
    def __init__(self, config: VisionConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        size = config.hidden_size
        self.norm1 = LayerNorm(size, _EPS, dtype=dtype, device=device)
        self.norm2 = LayerNorm(size, _EPS, dtype=dtype, device=device)
        heads, inner = config.num_heads, config.intermediate_size
        self.attn = _Attention(size, heads, [""], bias=True, dtype=dtype, device=device)
        self.mlp = _FeedForward((size, inner, size), config.hidden_act, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor, segments: Segments, rotation: Rotation) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), segments, rotation)
        return x + self.mlp(self.norm2(x))


class Merger(_FeedForward):
    """Makes neighbouring patches one token."""

    def __init__(
        self,
        config: VisionConfig,
        *,
        norms_merged: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """norms_merged: the norm comes after the patches are put together."""
        self._size = config.hidden_size * config.spatial_merge_size**2
        sizes = self._size, self._size, config.out_hidden_size
        super().__init__(sizes, "gelu", dtype=dtype, device=device)
        self._norms_merged = norms_merged
        normed = self._size if norms_merged else config.hidden_size
        self.norm = LayerNorm(normed, _EPS, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._norms_merged:
            return super().__call__(self.norm(x.view(-1, self._size)))
        return super().__call__(self.norm(x).view(-1, self._size))


class Encoder(VisionEncoder):
    """What it returns has, for each token, its embedding and then what is added to the states
    behind each of the text model's first layers, as many as ``deepstack_visual_indexes``:
    [image tokens, (1 + layers) * hidden_size]."""

    file_class: ClassVar[type[ConfigFile]] = ConfigFile
    prefixes = ("model.visual.", "visual.")
    names: ClassVar = {"embed": "patch_embed.proj", "position_grid": "pos_embed.weight"}

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
            config.hidden_size, (frames, side, side), bias=True, dtype=dtype, device=device
        )
        positions = config.num_position_embeddings, config.hidden_size
        self.position_grid = Weight.empty(positions, dtype=dtype, device=device)
        self.blocks = [Layer(config, dtype=dtype, device=device) for _ in range(config.depth)]
        self.merger = Merger(config, norms_merged=False, dtype=dtype, device=device)
        self.deepstack_merger_list = [
            Merger(config, norms_merged=True, dtype=dtype, device=device)
            for _ in config.deepstack_visual_indexes
        ]

    def __call__(self, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pictures = Pictures(images, self._reader)
        row, column = pictures.positions()
        rotation = Rotation(row, column, self._frequencies, self._frequencies)
        x = self.embed(pictures.patches)
        x = x + self._positions(pictures).to(x.dtype)
        deepstack = {}
        for number, layer in enumerate(self.blocks):
            x = layer(x, pictures.segments, rotation)
            if number in self._config.deepstack_visual_indexes:
                place = self._config.deepstack_visual_indexes.index(number)
                deepstack[place] = self.deepstack_merger_list[place](x)
        merged = [self.merger(x), *(deepstack[place] for place in sorted(deepstack))]
        return pictures.split(torch.cat(merged, 1))

    def _positions(self, pictures: Pictures) -> torch.Tensor:
        """[num_patches, hidden_size] float32: the learned grid, stretched over each picture."""
        grid = self.position_grid.data.float()
        side = round(len(grid) ** 0.5)
        grid = grid.view(side, side, -1)
        found = []
        for rows, columns in pictures.grids:
            by_row = _stretched(grid, rows)
            both = _stretched(by_row.transpose(0, 1), columns).transpose(0, 1)
            found.append(blocked(both, self._config.spatial_merge_size))
        return torch.cat(found)


def _stretched(grid: torch.Tensor, size: int) -> torch.Tensor:
    """Linearly interpolated from end to end along the first dimension, to ``size``."""
    last = len(grid) - 1
    place = torch.arange(size, dtype=torch.float32, device=grid.device) * last / max(size - 1, 1)
    below = place.floor().clamp(max=max(last - 1, 0))
    index, fraction = below.long(), (place - below).view(-1, *[1] * (grid.dim() - 1))
    return torch.lerp(grid[index], grid[(index + 1).clamp(max=last)], fraction)
