"""Reading an adapter in PEFT's layout, and checking it against the model before anything is kept.

A module's output gains ``scaling * B @ (A @ x)``: A is ``lora_A`` [rank, in_features], B is
``lora_B`` [out_features, rank].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from engine.errors import AdapterLoadError
from engine.lora.config import FILE_NAME, AdapterConfig, read_config
from engine.lora.target_modules import TargetModule

WEIGHTS_NAME = "adapter_model.safetensors"

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True, slots=True)
class LoraPair:
    """What an adapter adds to one weight: ``up @ down``."""

    down: torch.Tensor
    """[rank, in_features]"""
    up: torch.Tensor
    """[out_features, rank], scaled."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter in host memory, checked against the model."""

    pairs: dict[str, LoraPair]
    """By the name of the target module they belong to."""
    rank: int
    digest: str
    """Digest of both files: results computed with one content are never taken for another's."""
    base_model: str | None
    """The model it was made for, as its config names it."""


def load_adapter(
    folder: Path,
    modules: Mapping[str, TargetModule],
    *,
    max_rank: int,
    dtype: torch.dtype,
    place_of: Callable[[str], str | None] = lambda name: name,
    pin: bool = False,
) -> Adapter:
    """place_of: the model's mapping of weight names. pin: load into pinned memory, for asynchronous
    copies. ``AdapterLoadError`` names the field or tensor that does not fit."""
    config = read_config(folder)
    if config.r > max_rank:
        raise AdapterLoadError(
            f"{folder / FILE_NAME}: r is {config.r}, but max_lora_rank is {max_rank}"
        )
    path = folder / WEIGHTS_NAME
    try:
        data = path.read_bytes()
        tensors = load(data)
    except OSError as error:
        raise AdapterLoadError(f"{path} cannot be read: {error.strerror}") from error
    except SafetensorError as error:
        raise AdapterLoadError(
            f"{path} cannot be read: it is cut short or damaged ({error})"
        ) from error
    sides: dict[str, dict[str, torch.Tensor]] = {"A": {}, "B": {}}
    for key, tensor in sorted(tensors.items()):
        module, side = _read_key(key, place_of)
        if module not in modules:
            raise AdapterLoadError(f"tensor {key!r} has no place in this model{_made_for(config)}")
        _check_shape(key, tensor, _shape(modules[module], side, config.r), config)
        sides[side][module] = tensor
    _check_complete(path, config, sides["A"], sides["B"])
    pairs = {}
    for module, down in sides["A"].items():
        pair = down.to(dtype), (sides["B"][module].float() * config.scaling).to(dtype)
        pairs[module] = LoraPair(*(one.pin_memory() if pin else one for one in pair))
    digest = sha256((folder / FILE_NAME).read_bytes() + data).hexdigest()
    return Adapter(pairs, config.r, digest, config.base_model_name_or_path)


def _read_key(key: str, place_of: Callable[[str], str | None]) -> tuple[str, str]:
    match = _KEY.fullmatch(key)
    if match is None:
        raise AdapterLoadError(
            f"tensor {key!r} is not supported: only base_model.model.*.lora_A.weight and "
            "lora_B.weight are"
        )
    name = place_of(match["module"] + ".weight") or ""
    return name.removesuffix(".weight"), match["side"]


def _shape(module: TargetModule, side: str, rank: int) -> list[int]:
    return [rank, module.in_features] if side == "A" else [module.out_features, rank]


def _check_shape(key: str, tensor: torch.Tensor, shape: list[int], config: AdapterConfig) -> None:
    if list(tensor.shape) != shape:
        raise AdapterLoadError(
            f"tensor {key!r} has shape {list(tensor.shape)}, this model asks for {shape}"
            + _made_for(config)
        )
    if not tensor.is_floating_point():
        raise AdapterLoadError(f"tensor {key!r} has dtype {tensor.dtype}, not a float's")
    if not tensor.float().isfinite().all():  # floats of 8 bits cannot be asked
        raise AdapterLoadError(f"tensor {key!r} holds values that are no finite numbers")


def _check_complete(
    path: Path,
    config: AdapterConfig,
    down: Mapping[str, torch.Tensor],
    up: Mapping[str, torch.Tensor],
) -> None:
    if not down and not up:
        raise AdapterLoadError(f"{path} holds no tensor")
    for module in sorted(set(down) ^ set(up)):
        lacking = "lora_B" if module in down else "lora_A"
        raise AdapterLoadError(f"{path} lacks {lacking} of {module!r}")
    if isinstance(config.target_modules, str):
        return
    for target in config.target_modules:
        if not any(module == target or module.endswith("." + target) for module in down):
            raise AdapterLoadError(
                f"{FILE_NAME}: target_modules names {target!r}, but {path} holds no tensor of it"
            )


def _made_for(config: AdapterConfig) -> str:
    base = config.base_model_name_or_path
    return f": the adapter was made for {base!r}" if base else ""
