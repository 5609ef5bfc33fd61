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


class Quantization(ABC):
    """How the linear layers of one checkpoint are stored."""

    unquantized: Sequence[str] = ()
    """Layers left alone: whole components of their checkpoint names, or ``re:`` and a regex."""
    is_online: bool = False
    """The checkpoint is not quantized; its weights are while they load."""
    skipped: Sequence[str] = ()
    """Ends of the names of tensors that a checkpoint may hold and nobody needs."""

    @abstractmethod
    def weight(self, linear: Linear) -> QuantizedWeight:
        """For a layer whose own weight is not loaded. ``ValueError`` says what does not fit."""

    def quantizes(self, name: str) -> bool:
        """name: of a layer in the checkpoint."""
        return not any(_matches(pattern, name) for pattern in self.unquantized)

    def skips(self, tensor: str, known: Callable[[str], bool]) -> bool:
        """known: whether the model has a place for a tensor of this name."""
        return tensor.endswith(tuple(self.skipped)) and not known(tensor)


def quantize(model: Module, quantization: Quantization) -> None:
    """Before the weights are loaded. ``ModelLoadError`` names a layer that cannot be quantized."""
    for path, module in _named_modules(model):
        if not isinstance(module, Quantizable):
            continue
        if isinstance(module, UpProjection) and quantization.is_online:
            continue  # It would be rounded only to be dequantized.
        if not _all_or_none(quantization, path, module):
            continue
        try:
            module.quantize(quantization.weight)
        except ValueError as error:
            raise ModelLoadError(f"quantization: {path}: {error}") from error


def _all_or_none(quantization: Quantization, path: str, module: Quantizable) -> bool:
    """Whether the matrices that ``module`` is made of are quantized."""
    parts = module.weight.parts
    names = [checkpoint_name(f"{path}.weight", part) for part in parts]
    chosen = {quantization.quantizes(name.removesuffix(".weight")) for name in names}
    if len(chosen) > 1:
        raise ModelLoadError(
            f"quantization_config: {path} is one matrix here: quantize all of "
            f"{', '.join(module.parts)} or none"
        )
    return chosen == {True}


def _named_modules(module: Module, prefix: str = "") -> Iterator[tuple[str, Module]]:
    for name, child in module.children():
        if isinstance(child, Module):
            yield prefix + name, child
            yield from _named_modules(child, f"{prefix}{name}.")


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return pattern == name or f".{pattern}." in f".{name}."
