"""Loading safetensors checkpoints, single or sharded, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError
from engine.hub import weight_files
from engine.layers.module import Module
from engine.messages import LoadProgress
from engine.weights.names import is_ignored, targets
from engine.weights.shard import load_shard

OnProgress = Callable[[LoadProgress], None]


def load_weights(
    model: Module, model_dir: Path, *, tied: bool, on_progress: OnProgress | None = None
) -> None:
    """Fill every parameter of ``model``. ``ModelLoadError`` names what is missing or too much."""
    missing = targets(model)
    files = weight_files(model_dir)
    for done, path in enumerate(files):
        if on_progress is not None:
            on_progress(LoadProgress(f"Loading {path.name}", done / len(files)))
        for name, tensor in _tensors(path):
            target = missing.pop(name, None)
            if target is not None:
                load_shard(name, target, tensor)
            elif not is_ignored(name, tied=tied):
                raise ModelLoadError(
                    f"{path.name} holds tensor {name!r}, which the model has no place for: "
                    "config.json and the weights do not belong together"
                )
    if missing:
        raise ModelLoadError(
            f"{model_dir} lacks tensor {min(missing)!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + ": download the checkpoint again"
        )


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.offset_keys():  # as they lie on the disk
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
