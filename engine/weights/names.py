"""Which checkpoint tensor goes where in a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.layers.module import Module
from engine.layers.parameter import Weight


@dataclass(frozen=True, slots=True)
class Target:
    """A part of a parameter, as the target of a checkpoint's tensor."""

    weight: Weight
    part: str

    def load(self, tensor: torch.Tensor) -> None:
        """Copy a tensor of the part's shape, converted to the parameter's dtype and device."""
        self.weight.load(self.part, tensor)


def targets(model: Module) -> dict[str, Target]:
    """Every checkpoint tensor ``model`` needs, by its name in the checkpoint.

    The part q_proj of ``self_attn.qkv_proj.weight`` is ``self_attn.q_proj.weight`` in the
    checkpoint; a parameter of one part bears the same name in both.
    """
    found = {}
    for name, weight in model.named_weights():
        for part in weight.parts:
            found[checkpoint_name(name, part)] = Target(weight, part)
    return found


def is_ignored(name: str, *, tied: bool) -> bool:
    """Whether a checkpoint may hold ``name`` without the model having a place for it.

    Old checkpoints store the rotary frequencies; some store a head although it is tied. The scales
    of a quantized KV cache are read on their own.
    """
    unneeded = ("rotary_emb.inv_freq", ".k_scale", ".v_scale", ".kv_scale")
    return name.endswith(unneeded) or (tied and name == "lm_head.weight")


def checkpoint_name(parameter_name: str, part: str) -> str:
    """The checkpoint's name for ``part`` of the parameter."""
    if not part:
        return parameter_name
    *parents, _fused, leaf = parameter_name.split(".")
    return ".".join((*parents, part, leaf))
