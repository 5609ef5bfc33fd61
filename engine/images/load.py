"""From a model's folder to its image processor."""

from __future__ import annotations

import importlib
from pathlib import Path

import msgspec

from engine.architectures import VISION
from engine.images.processor import ImageFile, ImageProcessor, read_config


class _Architectures(msgspec.Struct):
    architectures: list[str] = []


def load_processor(model_dir: Path) -> ImageProcessor | None:
    """None if the model does not see, or if its folder does not say how pictures are prepared: then
    it is served for texts. Raises ``ModelLoadError`` naming the file and the field."""
    for architecture in read_config(model_dir, _Architectures).architectures[:1]:
        if architecture in VISION and ImageFile.exists(model_dir):
            module = importlib.import_module(f"engine.images.{VISION[architecture]}")
            processor: ImageProcessor = module.Processor.load(model_dir)
            return processor
    return None
