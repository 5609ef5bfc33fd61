"""MXFP4 checkpoints (gpt-oss): the stacked matrices of experts are in blocks of 32 numbers of four
bits that share a power of two; everything else is not quantized."""

from __future__ import annotations

from engine.quant.base import CheckpointQuantization, Quantization


class Mxfp4(CheckpointQuantization):
    stacks_experts = True

    def of(self, name: str) -> Quantization | None:
        return None
