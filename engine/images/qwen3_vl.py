"""Pictures of Qwen2.5-VL and Qwen3-VL: of any size, in patches of which some make a token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Self

import msgspec

from engine.errors import ImageTooLarge
from engine.images.processor import (
    LOW_DETAIL_TOKENS,
    Detail,
    Fit,
    ImageFile,
    ImageProcessor,
    read_config,
)

_MAX_RATIO = 200

Count = Annotated[int, msgspec.Meta(ge=1)]


class QwenFile(ImageFile, kw_only=True):
    image_mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    resample: int = 3
    patch_size: Count = 14
    merge_size: Count = 2
    temporal_patch_size: Count = 2
    min_pixels: Count | None = None
    max_pixels: Count | None = None

    @property
    def pixels(self) -> tuple[int, int]:
        """The fewest and the most of a resized picture."""
        size = self.size or {}
        fewest = self.min_pixels or size.get("shortest_edge") or size.get("min_pixels")
        most = self.max_pixels or size.get("longest_edge") or size.get("max_pixels")
        return fewest or 56 * 56, most or 28 * 28 * 1280

    def check(self) -> None:
        super().check()
        fewest, most = self.pixels
        if fewest > most:
            raise ValueError(f"size: shortest_edge {fewest} is above longest_edge {most}")


class _Config(msgspec.Struct):
    image_token_id: int


class Processor(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """An image token stands for a square of so many pixels a side."""
    min_pixels: int
    max_pixels: int

    @classmethod
    def load(cls, model_dir: Path) -> Self:
        file = QwenFile.read(model_dir)
        token = read_config(model_dir, _Config).image_token_id
        fewest, most = file.pixels
        return cls(
            placeholder=token,
            image_token_id=token,
            resample=file.resample,
            normalization=file.normalization,
            side=file.patch_size * file.merge_size,
            min_pixels=fewest,
            max_pixels=most,
        )

    def fit(self, width: int, height: int, detail: Detail = "auto") -> Fit:
        fewest, most = self.min_pixels, self.max_pixels
        if detail == "low":
            most = min(most, LOW_DETAIL_TOKENS * self.side**2)
            # Narrow pictures become larger than the fewest pixels by up to a row and a column.
            fewest = min(fewest, most // 4)
        height, width = _sizes(height, width, self.side, fewest, most)
        rows, columns = height // self.side, width // self.side
        return Fit(height, width, rows, columns, rows * columns)

    @property
    def most_image_tokens(self) -> int:
        of_token = self.side**2
        most, fewest = -(-self.max_pixels // of_token), -(-self.min_pixels // of_token)
        # A narrow picture has a token's width at least, and a small one is rounded up.
        narrow, grown = math.isqrt(_MAX_RATIO * most), math.isqrt(_MAX_RATIO * fewest)
        return max(most, narrow + 1, fewest + 2 * grown + 4)


def _sizes(height: int, width: int, side: int, fewest: int, most: int) -> tuple[int, int]:
    """Multiples of ``side``, of about the same ratio, whose product is in [fewest, most]: what
    transformers' ``smart_resize`` returns."""
    if max(height, width) / min(height, width) > _MAX_RATIO:
        raise ImageTooLarge(
            f"a side of the image is more than {_MAX_RATIO} times as long as the other"
            f" ({width} x {height} pixels): the model sees no such shape, cut it"
        )
    new_height, new_width = round(height / side) * side, round(width / side) * side
    if new_height * new_width > most:
        shrink = math.sqrt((height * width) / most)
        new_height = max(side, math.floor(height / shrink / side) * side)
        new_width = max(side, math.floor(width / shrink / side) * side)
    elif new_height * new_width < fewest:
        grow = math.sqrt(fewest / (height * width))
        new_height = math.ceil(height * grow / side) * side
        new_width = math.ceil(width * grow / side) * side
    return new_height, new_width
