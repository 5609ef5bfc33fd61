"""The demo model with random weights, and heads for it, changed or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from engine.demo import MODEL_DIR
from engine.models.llama import ForCausalLM
from engine.models.registry import read_config
from engine.spec.eagle import load_eagle, load_eagle3
from engine.spec.medusa import load_medusa

CPU, F32 = torch.device("cpu"), torch.float32
CONFIG = read_config(MODEL_DIR)
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], object]


class Copy(Protocol):
    """Makes a folder with a bundled head, or random Medusa heads, of which some tensors and fields
    are changed; fields that are None are left out."""

    def __call__(self, name: str, change: Change = ..., **fields: object) -> Path: ...


def load(folder: Path, target: ForCausalLM) -> Any:
    """The head in a folder that is named after its kind."""
    if folder.name == "medusa":
        return load_medusa(folder, CONFIG, dtype=F32, device=CPU)
    method = load_eagle3 if folder.name == "eagle3" else load_eagle
    return method(folder, target, CONFIG, max_model_len=64, dtype=F32, device=CPU)
