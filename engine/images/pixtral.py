"""Pictures of Mistral 3, which has Pixtral's encoder (arXiv 2410.07073): of any size up to a
longest edge, with a token behind each row of image tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Self

import msgspec

from engine.errors import ImageTooLarge, ModelLoadError
from engine.images.processor import (
    LOW_DETAIL_TOKENS,
    Detail,
    Fit,
    ImageFile,
    ImageProcessor,
    added_tokens,
    read_config,
)

Count = Annotated[int, msgspec.Meta(ge=1)]


class _ImageFile(ImageFile, kw_only=True):
    image_mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    resample: int = 3

    @property
    def longest(self) -> tuple[int, int]:
        """The largest height and width."""
        size = self.size or {"longest_edge": 1024}
        edge = size.get("longest_edge")
        return size.get("height") or edge or 0, size.get("width") or edge or 0

    def check(self) -> None:
        super().check()
        if min(self.longest) < 1:
            raise ValueError(f"size: needs longest_edge, or height and width, got {self.size}")


class _VisionConfig(msgspec.Struct):
    patch_size: Count = 16


class _Config(msgspec.Struct):
    vision_config: _VisionConfig
    image_token_index: int = 10
    spatial_merge_size: Count = 2


class Processor(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """An image token stands for a square of so many pixels a side."""
    max_height: int
    max_width: int
    break_token_id: int
    """Stands behind each row but the last."""
    end_token_id: int
    """Stands behind the last row."""

    @classmethod
    def load(cls, model_dir: Path) -> Self:
        file = _ImageFile.read(model_dir)
        config = read_config(model_dir, _Config)
        ids = added_tokens(model_dir)
        for token in ("[IMG_BREAK]", "[IMG_END]"):
            if token not in ids:
                raise ModelLoadError(f"{model_dir / 'tokenizer.json'} has no token {token}")
        height, width = file.longest
        return cls(
            placeholder=config.image_token_index,
            image_token_id=config.image_token_index,
            resample=file.resample,
            normalization=file.normalization,
            side=config.vision_config.patch_size * config.spatial_merge_size,
            max_height=height,
            max_width=width,
            break_token_id=ids["[IMG_BREAK]"],
            end_token_id=ids["[IMG_END]"],
        )

    def fit(self, width: int, height: int, detail: Detail = "auto") -> Fit:
        tallest, widest = self.max_height, self.max_width
        if detail == "low":
            edge = math.isqrt(LOW_DETAIL_TOKENS) * self.side
            tallest, widest = min(tallest, edge), min(widest, edge)
        ratio = max(height / tallest, width / widest)
        new_height, new_width = height, width
        if ratio > 1:
            new_height, new_width = math.floor(height / ratio), math.floor(width / ratio)
        if not (new_height and new_width):
            raise ImageTooLarge(
                f"a side of the image is too long for the other ({width} x {height} pixels):"
                " nothing is left of that once the image is as small as the model sees it, cut it"
            )
        rows, columns = -(-new_height // self.side), -(-new_width // self.side)
        return Fit(rows * self.side, columns * self.side, rows, columns, rows * (columns + 1))

    @property
    def most_image_tokens(self) -> int:
        return -(-self.max_height // self.side) * -(-self.max_width // self.side)

    def tokens(self, fit: Fit) -> list[int]:
        row = [self.image_token_id] * fit.columns
        return [*([*row, self.break_token_id] * (fit.rows - 1)), *row, self.end_token_id]
