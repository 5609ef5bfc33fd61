"""Pictures of Gemma 3 (arXiv 2503.19786): squeezed to one size, and so of equally many tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Self

import msgspec

from engine.errors import ModelLoadError
from engine.images.processor import (
    Detail,
    Fit,
    ImageFile,
    ImageProcessor,
    added_tokens,
    read_config,
)

_AROUND = "\n\n"


class _ImageFile(ImageFile, kw_only=True):
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    resample: int = 2
    do_pan_and_scan: bool = False

    def check(self) -> None:
        super().check()
        if self.do_pan_and_scan:
            raise ValueError("do_pan_and_scan: true is not supported")


class _VisionConfig(msgspec.Struct):
    image_size: int = 224


class _Config(msgspec.Struct):
    vision_config: _VisionConfig
    mm_tokens_per_image: int = 256
    boi_token_index: int = 255_999
    eoi_token_index: int = 256_000
    image_token_index: int = 262_144


class Processor(ImageProcessor, frozen=True, kw_only=True):
    """The tokens of a picture stand in an empty line, between one that begins it, which is the
    placeholder, and one that ends it."""

    size: int
    """Of a side, in pixels."""
    num_image_tokens: int
    begin_token: str
    end_token_id: int

    @classmethod
    def load(cls, model_dir: Path) -> Self:
        file = _ImageFile.read(model_dir)
        config = read_config(model_dir, _Config)
        size = config.vision_config.image_size
        if (file.size or {}) != {"height": size, "width": size}:
            raise ModelLoadError(
                f"{model_dir}: preprocessor_config.json makes images of size {file.size},"
                f" vision_config.image_size in config.json is {size}"
            )
        tokens = {number: token for token, number in added_tokens(model_dir).items()}
        if config.boi_token_index not in tokens:
            raise ModelLoadError(
                f"{model_dir / 'tokenizer.json'} has no token {config.boi_token_index}, which is"
                " boi_token_index in config.json"
            )
        return cls(
            placeholder=config.boi_token_index,
            image_token_id=config.image_token_index,
            resample=file.resample,
            normalization=file.normalization,
            size=size,
            num_image_tokens=config.mm_tokens_per_image,
            begin_token=tokens[config.boi_token_index],
            end_token_id=config.eoi_token_index,
        )

    def fit(self, width: int, height: int, detail: Detail = "auto") -> Fit:
        side = math.isqrt(self.num_image_tokens)
        return Fit(self.size, self.size, side, side, self.num_image_tokens + 2)

    def tokens(self, fit: Fit) -> list[int]:
        seen = [self.image_token_id] * self.num_image_tokens
        return [self.placeholder, *seen, self.end_token_id]

    @property
    def most_image_tokens(self) -> int:
        return self.num_image_tokens

    def rendered(self, prompt: str) -> str:
        return prompt.replace(self.begin_token, f"{_AROUND}{self.begin_token}{_AROUND}")
