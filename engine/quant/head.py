"""The language model head in FP8, whatever the other layers are stored as."""

from __future__ import annotations

from engine.layers.linear import Linear, TiedLinear
from engine.layers.module import Module
from engine.quant.fp8 import Fp8

HEAD = "lm_head"
"""What native models and checkpoints call it."""
ROUNDED = Fp8(online=True)
"""How it is kept."""


def quantize_head(model: Module) -> None:
    """Before the weights are loaded: round the head of a native model by row when they are.

    One that the checkpoint has quantized stays as it is, and only the last stage has one.
    """
    head = dict(model.children()).get(HEAD)
    if isinstance(head, Linear | TiedLinear) and head.quantized is None:
        head.quantize(ROUNDED.weight)
