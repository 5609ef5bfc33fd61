"""From the name in a checkpoint's ``architectures`` to the file that implements it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import torch

from engine.architectures import NATIVE, decoder_of, nearest
from engine.errors import ModelLoadError
from engine.models import config
from engine.models.base import Model, ModelConfig


def read_config(model_dir: Path) -> ModelConfig:
    """Read config.json with the reader of its family. Raises ``ModelLoadError`` naming what is
    wrong or unknown."""
    family = _module(config.read_architecture(model_dir))
    return config.read_config(model_dir, family.ConfigFile)


def create_model(
    config: ModelConfig, *, max_model_len: int, dtype: torch.dtype, device: torch.device
) -> Model:
    """The model with its weights not yet loaded."""
    model: type[Model] = _module(config.architecture).ForCausalLM
    return model(config, max_model_len=max_model_len, dtype=dtype, device=device)


def _module(architecture: str) -> ModuleType:
    family = NATIVE.get(decoder_of(architecture) or "")
    if family is None:
        raise ModelLoadError(
            f"architecture {architecture!r} has no native implementation, only "
            f"{', '.join(NATIVE)}; the nearest is {nearest(architecture)}. Leave model_impl at "
            "'auto' to try transformers' implementation"
        )
    return importlib.import_module(f"engine.models.{family.module}")
