"""From a checkpoint's config to its encoder."""

from __future__ import annotations

import importlib
from pathlib import Path

import msgspec
import torch

from engine.architectures import VISION
from engine.errors import ModelLoadError
from engine.images.load import load_processor
from engine.models.config import read_architecture
from engine.models.vision.base import VisionEncoder


def create_encoder(
    model_dir: Path, *, dtype: torch.dtype, device: torch.device
) -> VisionEncoder | None:
    """The encoder with its weights not yet loaded; None if the model does not see. Raises
    ``ModelLoadError`` naming the file and the field."""
    family = VISION.get(read_architecture(model_dir))
    processor = load_processor(model_dir)
    if family is None or processor is None:
        return None
    kind: type[VisionEncoder] = importlib.import_module(f"engine.models.vision.{family}").Encoder
    path = model_dir / "config.json"
    try:
        file = msgspec.json.decode(path.read_bytes(), type=kind.file_class)
        file.check()
    except ValueError as error:  # msgspec's are such, too
        raise ModelLoadError(f"{path}: {error}") from error
    return kind(file, processor.normalization, dtype=dtype, device=device)
