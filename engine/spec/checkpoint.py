"""Reading the checkpoints of draft heads: small, published in several layouts and file types."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from engine.errors import ModelLoadError
from engine.layers.module import Module
from engine.weights.dummy import draw_weights
from engine.weights.names import targets

_File = TypeVar("_File", bound=msgspec.Struct)


def read_fields(folder: Path, kind: type[_File]) -> _File:
    """The fields of config.json that ``kind`` names. Raises ``ModelLoadError``."""
    path = folder / "config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{path}: {error}") from error


def read_tensors(folder: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """All tensors of the first of the files ``names`` that is there.

    ``.bin`` and ``.pt`` files are read without running any code they may hold.
    """
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        try:
            if path.suffix == ".safetensors":
                return load_file(path)
            tensors: dict[str, torch.Tensor] = torch.load(
                path, map_location="cpu", weights_only=True
            )
        except (OSError, SafetensorError, RuntimeError, pickle.UnpicklingError) as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
        return tensors
    raise ModelLoadError(f"{folder} has none of the files {', '.join(names)}")


def fill(
    head: Module,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    ignored: Callable[[str], bool] = lambda name: False,
) -> None:
    """Fill every parameter of ``head``. ``ModelLoadError`` names what is missing or too much."""
    missing = targets(head)
    for name, tensor in tensors.items():
        target = missing.pop(name, None)
        if target is not None:
            expected = target.weight.part(target.part).shape
            if tensor.shape != expected:
                raise ModelLoadError(
                    f"{folder} does not fit the model: tensor {name!r} has shape"
                    f" {list(tensor.shape)}, but {list(expected)} is needed"
                )
            target.load(tensor)
        elif not ignored(name):
            raise ModelLoadError(f"{folder} holds tensor {name!r}, which the head has no place for")
    if missing:
        raise ModelLoadError(f"{folder} lacks tensor {min(missing)!r}")


def mismatch(folder: Path, what: str, head: object, target: object) -> ModelLoadError:
    return ModelLoadError(
        f"{folder} does not fit the model: {what} is {head}, the model's is {target}"
    )


def check_ids(folder: Path, name: str, ids: torch.Tensor, vocab_size: int) -> None:
    """Raises ``ModelLoadError`` unless all ids, [n] int64, are the model's."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    if low < 0 or high >= vocab_size:
        raise ModelLoadError(
            f"{folder} does not fit the model: {name} leads to tokens {low} to {high}, the model"
            f" has 0 to {vocab_size - 1}"
        )


def finish(
    head: Module,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    ignored: Callable[[str], bool] = lambda name: False,
    *,
    dummy: bool,
) -> None:
    """``fill``, or random weights, into their fastest form."""
    with torch.inference_mode():
        if dummy:
            draw_weights(head, seed=1)
        else:
            fill(head, tensors, folder, ignored)
        head.pack()
