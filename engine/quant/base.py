"""The interface of weight quantizations, and how they replace the weights of a model."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from engine.errors import ModelLoadError
from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.mla import UpProjection
from engine.layers.module import Module
from engine.layers.moe import ExpertLinear
from engine.layers.stacked_experts import StackedExperts
from engine.weights.names import checkpoint_name

Quantizable = Linear | ExpertLinear | UpProjection


class CheckpointQuantization(ABC):
    """How the linear layers of one checkpoint are stored."""

    is_online: bool = False
    """Whether the checkpoint is not quantized, and its weights are quantized while they load."""
    stacks_experts: bool = False
    """Whether the matrices of ``StackedExperts`` are quantized, in MXFP4."""
    skipped: Sequence[str] = ()
    """Suffixes of the names of tensors that a checkpoint may hold but are not needed."""

    @abstractmethod
    def of(self, name: str) -> Quantization | None:
        """How a layer is stored, by its name in the checkpoint; None: not quantized."""

    def skips(self, tensor: str, known: Callable[[str], bool]) -> bool:
        """Whether to ignore a tensor of the checkpoint. known: tells whether the model has a weight
        of this name."""
        return tensor.endswith(tuple(self.skipped)) and not known(tensor)


class Quantization(CheckpointQuantization):
    """One format of quantized linear layers. In most checkpoints all layers have the same."""

    unquantized: Sequence[str] = ()
    """Patterns of layers that are not quantized, see ``matches``."""

    @abstractmethod
    def weight(self, linear: Linear) -> QuantizedWeight:
        """The quantized weight for a layer whose own weight was not loaded. Raises ``ValueError``
        saying what does not fit."""

    def of(self, name: str) -> Quantization | None:
        return None if any(matches(pattern, name) for pattern in self.unquantized) else self


def quantize(model: Module, quantization: CheckpointQuantization) -> None:
    """Replace the weights of a model by quantized ones; call it before they are loaded. Raises
    ``ModelLoadError`` naming a layer that cannot be quantized."""
    modules = list(_named_modules(model))
    stacked = [(path, module) for path, module in modules if isinstance(module, StackedExperts)]
    if quantization.stacks_experts and not stacked:
        raise ModelLoadError("quantization_config: quant_method 'mxfp4' is for gpt-oss only")
    for path, experts in stacked:
        _quantize_stacked(path, experts, quantization)
    for path, module in modules:
        if not isinstance(module, Quantizable):
            continue
        if isinstance(module, UpProjection) and quantization.is_online:
            continue  # It is dequantized after loading: quantizing it would only lose precision.
        of_layer = _all_alike(quantization, path, module)
        if of_layer is None:
            continue
        try:
            module.quantize(of_layer.weight)
        except ValueError as error:
            raise ModelLoadError(f"quantization: {path}: {error}") from error


def _quantize_stacked(
    path: str, experts: StackedExperts, quantization: CheckpointQuantization
) -> None:
    if not quantization.stacks_experts and quantization.of(path) is not None:
        raise ModelLoadError(
            f"quantization: {path}: experts that are stored together can be in MXFP4 only: take "
            "the checkpoint in MXFP4, or leave quantization out"
        )
    if quantization.stacks_experts:
        try:
            experts.quantize()
        except ValueError as error:
            raise ModelLoadError(f"quantization: {path}: {error}") from error


def _all_alike(
    quantization: CheckpointQuantization, path: str, module: Quantizable
) -> Quantization | None:
    """The quantization of the checkpoint's matrices that are fused in ``module``; None for none.
    Raises ``ModelLoadError`` if they differ."""
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
    """Whether a pattern of a checkpoint's config selects a layer: by ``re:`` and a regular
    expression, or by whole components of its name, such as ``self_attn`` or ``layers.0.mlp``."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return pattern == name or f".{pattern}." in f".{name}."
