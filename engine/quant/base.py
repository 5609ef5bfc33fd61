"""What every quantization of weights offers, and putting it in the place of a model's weights."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from engine.errors import ModelLoadError
from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.mla import UpProjection
from engine.layers.module import Module
from engine.layers.moe import ExpertLinear
from engine.weights.names import checkpoint_name

Quantizable = Linear | ExpertLinear | UpProjection


class CheckpointQuantization(ABC):
    """How the linear layers of one checkpoint are stored."""

    is_online: bool = False
    """The checkpoint is not quantized; its weights are while they load."""
    skipped: Sequence[str] = ()
    """Ends of the names of tensors that a checkpoint may hold and nobody needs."""

    @abstractmethod
    def of(self, name: str) -> Quantization | None:
        """How a layer is stored, by its name in the checkpoint; None: not quantized."""

    def skips(self, tensor: str, known: Callable[[str], bool]) -> bool:
        """known: whether the model has a place for a tensor of this name."""
        return tensor.endswith(tuple(self.skipped)) and not known(tensor)


class Quantization(CheckpointQuantization):
    """One way to store linear layers, in most checkpoints that of all of them."""

    unquantized: Sequence[str] = ()
    """Layers left alone: whole components of their checkpoint names, or ``re:`` and a regex."""

    @abstractmethod
    def weight(self, linear: Linear) -> QuantizedWeight:
        """For a layer whose own weight is not loaded. ``ValueError`` says what does not fit."""

    def of(self, name: str) -> Quantization | None:
        return None if any(matches(pattern, name) for pattern in self.unquantized) else self


def quantize(model: Module, quantization: CheckpointQuantization) -> None:
    """Before the weights are loaded. ``ModelLoadError`` names a layer that cannot be quantized."""
    for path, module in _named_modules(model):
        if not isinstance(module, Quantizable):
            continue
        if isinstance(module, UpProjection) and quantization.is_online:
            continue  # It would be rounded only to be dequantized.
        of_layer = _all_alike(quantization, path, module)
        if of_layer is None:
            continue
        try:
            module.quantize(of_layer.weight)
        except ValueError as error:
            raise ModelLoadError(f"quantization: {path}: {error}") from error


def _all_alike(
    quantization: CheckpointQuantization, path: str, module: Quantizable
) -> Quantization | None:
    """How the matrices that ``module`` is made of are stored."""
    parts = module.weight.parts
    names = [checkpoint_name(f"{path}.weight", part) for part in parts]
    chosen = {quantization.of(name.removesuffix(".weight")) for name in names}
    if len(chosen) > 1:
        raise ModelLoadError(
            f"quantization_config: {path} is one matrix here: quantize all of "
            f"{', '.join(module.parts)} alike, or none"
        )
    return chosen.pop()


def _named_modules(module: Module, prefix: str = "") -> Iterator[tuple[str, Module]]:
    for name, child in module.children():
        if isinstance(child, Module):
            yield prefix + name, child
            yield from _named_modules(child, f"{prefix}{name}.")


def matches(pattern: str, name: str) -> bool:
    """pattern: whole components of a layer's name in the checkpoint, or ``re:`` and a regex."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return pattern == name or f".{pattern}." in f".{name}."
