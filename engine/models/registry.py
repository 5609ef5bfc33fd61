"""From the name in a checkpoint's ``architectures`` to the class that implements it.

To add a model: write its file, add its line here.
"""

from __future__ import annotations

import importlib

import torch

from engine.errors import ModelLoadError
from engine.models.base import Model, ModelConfig

_ARCHITECTURES = {
    "LlamaForCausalLM": "engine.models.llama:LlamaForCausalLM",
}


def create_model(
    config: ModelConfig, *, max_model_len: int, dtype: torch.dtype, device: torch.device
) -> Model:
    """The model with its weights not yet loaded; ``ModelLoadError`` for an unknown architecture."""
    target = _ARCHITECTURES.get(config.architecture)
    if target is None:
        raise ModelLoadError(
            f"architecture {config.architecture!r} is not supported, "
            f"only {', '.join(_ARCHITECTURES)}"
        )
    module, _, name = target.partition(":")
    model_class: type[Model] = getattr(importlib.import_module(module), name)
    return model_class(config, max_model_len=max_model_len, dtype=dtype, device=device)
