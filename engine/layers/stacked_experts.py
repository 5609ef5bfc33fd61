"""gpt-oss's experts: the tensors of all are stored together, gate and up features in turns, with
biases, plain or in MXFP4 (OCP Microscaling Formats 1.0)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.layers.module import Module
from engine.layers.parameter import Weight
from engine.parallel.group import ALONE, Group
from kernels import ops
from kernels.experts import MXFP4_BLOCK, BiasedSwiglu, ExpertMatrices, Mxfp4Experts
from kernels.reference_experts import dequantize_mxfp4

_ONE_HALF = 126
"""Of exponents with a bias of 127."""


class StackedExperts(Module):
    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        swiglu: tuple[float, float],
        group: Group = ALONE,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """swiglu: slope and limit, see ``BiasedSwiglu``. group: the ranks among which each expert's
        ``intermediate_size`` features were divided; what a call returns is partial."""
        self._group = group
        self._swiglu, self._dtype, self._device = swiglu, dtype, device
        self._shapes = {
            "gate_up_proj": (num_experts, 2 * intermediate_size, hidden_size),
            "down_proj": (num_experts, hidden_size, intermediate_size),
        }
        self._tensors: dict[str, Weight] = {}
        for name, (_, features, inputs) in self._shapes.items():
            shape = num_experts, inputs, features
            self._tensors[name] = Weight.empty(shape, dtype=dtype, device=device)
            bias = torch.empty(num_experts, features, dtype=dtype, device=device)
            self._tensors[f"{name}_bias"] = Weight(bias)
        self._gate_up: ExpertMatrices | None = None
        self._down: ExpertMatrices | None = None
        self._swiglu_with_biases: BiasedSwiglu | None = None

    def children(self) -> Iterator[tuple[str, Module | Weight]]:
        yield from self._tensors.items()

    def quantize(self) -> None:
        """Expect matrices in MXFP4. Raises ``ValueError`` if their inputs are not whole blocks."""
        for name, (num_experts, features, inputs) in self._shapes.items():
            if inputs % MXFP4_BLOCK:
                raise ValueError(f"{inputs} inputs are no multiple of {MXFP4_BLOCK}")
            del self._tensors[name]
            shape = num_experts, features, inputs // MXFP4_BLOCK
            scales = torch.empty(shape, dtype=torch.uint8, device=self._device)
            blocks = scales.new_empty(*shape, MXFP4_BLOCK // 2)
            self._tensors[f"{name}_blocks"] = _Blocks(blocks)
            self._tensors[f"{name}_scales"] = _Exponents(scales)

    def pack(self) -> None:
        gate_up_bias, down_bias = (self._tensors[f"{name}_bias"].data for name in self._shapes)
        if self._group.rank:
            down_bias = torch.zeros_like(down_bias)  # Rank 0 adds it.
        features = torch.arange(gate_up_bias.shape[1], device=self._device)
        apart = torch.cat((features[0::2], features[1::2]))
        self._gate_up = self._matrices("gate_up_proj", apart)
        self._down = self._matrices("down_proj")
        self._swiglu_with_biases = BiasedSwiglu(gate_up_bias[:, apart], down_bias, *self._swiglu)
        self._tensors = {}

    def _matrices(self, name: str, order: torch.Tensor | None = None) -> ExpertMatrices:
        """order: of the features; None: as they are."""
        plain = self._tensors.get(name)
        if plain is not None:
            matrices = plain.data.transpose(1, 2)
            return (matrices if order is None else matrices[:, order]).contiguous()
        packed = self._tensors[f"{name}_blocks"].data.flatten(2)
        scales = self._tensors[f"{name}_scales"].data
        if order is not None:
            packed, scales = packed[:, order].contiguous(), scales[:, order].contiguous()
        if self._device.type == "cuda":
            return Mxfp4Experts(packed, scales)
        return dequantize_mxfp4(packed, scales).to(self._dtype)

    def __call__(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """x: [num_tokens, hidden]; experts, weights: as ``Router`` returns them."""
        assert self._gate_up is not None
        assert self._down is not None
        how = self._swiglu_with_biases
        return ops.apply_experts(x, self._gate_up, self._down, experts, weights, how)


class _Blocks(Weight):
    """Two numbers of four bits in a byte."""

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        self.data.random_(generator=generator)


class _Exponents(Weight):
    """Powers of two, one for each block."""

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        power = torch.tensor(deviation).log2().round()
        self.data.fill_(_ONE_HALF + int(power))
