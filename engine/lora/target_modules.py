"""The matrices of a model that an adapter can change: PEFT's target modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.parameter import Weight

_WITHOUT = ("lm_head",)


@dataclass(frozen=True, slots=True)
class TargetModule:
    """One matrix of the checkpoint. Several of them may be fused in one ``Linear``."""

    linear: Linear
    columns: slice
    """The output features of ``linear`` that are this matrix's."""

    @property
    def in_features(self) -> int:
        return self.linear.in_features

    @property
    def out_features(self) -> int:
        return int(self.columns.stop - self.columns.start)


def find_target_modules(model: Module) -> dict[str, TargetModule]:
    """All target modules of a model, by the checkpoint's names, such as
    ``model.layers.0.self_attn.q_proj``.

    The head, experts of a mixture, and matrices that latent attention has absorbed are not among
    them.
    """
    return dict(_below(model, ""))


def _below(module: Module, prefix: str) -> Mapping[str, TargetModule]:
    found: dict[str, TargetModule] = {}
    for name, child in module.children():
        if isinstance(child, Weight) or name in _WITHOUT:
            continue
        if isinstance(child, Linear):
            start = 0
            for part, rows in child.parts.items():
                found[prefix + (part or name)] = TargetModule(child, slice(start, start + rows))
                start += rows
        else:
            found |= _below(child, f"{prefix}{name}.")
    return found
