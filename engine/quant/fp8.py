"""FP8 weights (e4m3) with one scale for each output channel or for the tensor (arXiv 2209.05433).

Either a checkpoint's own, or rounded while a 16-bit checkpoint loads. On a GPU, activations are
rounded to FP8 as well, with a scale for each token, where GEMMs in FP8 are faster. A CPU
computes with dequantized weights. Static scales of activations in a checkpoint are not needed, and
ignored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch

from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.parameter import Weight
from engine.quant.base import Quantization
from kernels import ops, quantized
from kernels.experts import ExpertMatrices, Fp8Experts
from kernels.rounded import Activations

FP8 = torch.float8_e4m3fn
_FEATURES = 16
"""The kernels need a multiple of this many output features."""


class Fp8(Quantization):
    """Weights with a scale for each channel or for each tensor."""

    skipped = (".input_scale", ".k_scale", ".v_scale", ".kv_scale", ".output_scale")

    def __init__(
        self,
        *,
        online: bool = False,
        per_tensor: bool = False,
        activations: bool = True,
        unquantized: Sequence[str] = (),
    ) -> None:
        """online: the checkpoint is not quantized. per_tensor: a checkpoint's scales are per
        tensor, not per channel. activations: round activations to FP8, too, where that is faster.
        unquantized: as the field of ``Quantization``."""
        self.is_online, self._per_tensor, self._activations = online, per_tensor, activations
        self.unquantized = unquantized

    def weight(self, linear: Linear) -> QuantizedWeight:
        if self.is_online:
            return OnlineFp8Weight(linear, activations=self._activations)
        return Fp8Weight(linear, per_tensor=self._per_tensor, activations=self._activations)


class _Fp8Linear(QuantizedWeight):
    """Linear layers with an FP8 weight, from a checkpoint or rounded."""

    weight: Weight
    """[features, in_features] in FP8; rows beyond the features are padding."""

    def __init__(self, linear: Linear, *, activations: bool) -> None:
        self._dtype = linear.dtype
        self._activations = activations
        self._features = sum(linear.parts.values())
        # A head may have any number of features, so it is padded. A layer of several parts is not:
        # its halves may be [gate | up].
        rows = self._features
        if len(linear.parts) == 1:
            rows = -(-rows // _FEATURES) * _FEATURES
        self._shape = rows, linear.in_features

    @property
    @abstractmethod
    def scale(self) -> torch.Tensor:
        """[rows, 1] float32, with as many rows as the weight, padding included."""

    def prepare(self) -> bool:
        return quantized.serves(self.weight.data)

    def dequantize(self) -> torch.Tensor:
        return (self._rows.float() * self.scale[: self._features]).to(self._dtype)

    def stack(self, weights: Sequence[QuantizedWeight]) -> ExpertMatrices:
        linears = [weight for weight in weights if isinstance(weight, _Fp8Linear)]
        data = [linear._rows.view(torch.uint8) for linear in linears]
        scales = [linear.scale[: linear._features] for linear in linears]
        return Fp8Experts(torch.stack(data).view(FP8), torch.stack(scales))

    def _empty(self, device: torch.device) -> torch.Tensor:
        """Memory for the weight, whose padding is zero."""
        data = torch.empty(self._shape, dtype=FP8, device=device)
        data[self._features :].view(torch.uint8).zero_()
        return data

    @property
    def _rows(self) -> torch.Tensor:
        """The weight without padding."""
        return self.weight.data[: self._features]

    @property
    def _is_padded(self) -> bool:
        return self._shape[0] != self._features

    def rounds(self, num_rows: int) -> bool:
        return self._activations and quantized.rounds(num_rows, self.weight.data, self._dtype)

    def linear(self, x: Activations, bias: torch.Tensor | None) -> torch.Tensor:
        weight, padded = self.weight.data, self._is_padded
        out = quantized.fp8_linear(
            x, weight, self.scale, None if padded else bias, round_x=self._activations
        )
        if not padded:
            return out
        out = out[:, : self._features]
        return out.contiguous() if bias is None else out + bias

    def gated_linear(
        self, x: Activations, bias: torch.Tensor | None, *, round_out: bool = False
    ) -> Activations:
        if self._is_padded:
            return super().gated_linear(x, bias, round_out=round_out)
        return quantized.fp8_gated_linear(
            x,
            self.weight.data,
            self.scale,
            bias,
            round_x=self._activations,
            round_out=round_out,
        )


class Fp8Weight(_Fp8Linear):
    """The FP8 weight and scales of a checkpoint."""

    def __init__(self, linear: Linear, *, per_tensor: bool, activations: bool) -> None:
        super().__init__(linear, activations=activations)
        self.weight = DrawnFp8(self._empty(linear.device), linear.parts)
        scale = torch.zeros(self._shape[0], 1, dtype=torch.float32, device=linear.device)
        kind = TensorScale if per_tensor else ChannelScale
        self.weight_scale = kind(scale, linear.parts)

    @property
    def scale(self) -> torch.Tensor:
        return self.weight_scale.data


class OnlineFp8Weight(_Fp8Linear):
    """A 16-bit weight that is rounded part by part while it loads: it is never in memory as a
    whole."""

    def __init__(self, linear: Linear, *, activations: bool) -> None:
        super().__init__(linear, activations=activations)
        self.weight: _Rounded = _Rounded(self._empty(linear.device), linear.parts)

    @property
    def scale(self) -> torch.Tensor:
        return self.weight.scale


class DrawnFp8(Weight):
    """A weight that can be drawn at random, for measurements: normally distributed before
    scaling."""

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        wide = torch.empty(self.data.shape, dtype=torch.bfloat16, device=self.data.device)
        self.data.copy_(wide.normal_(generator=generator))


class _Rounded(Weight):
    """Rounds what it loads, and keeps the scales."""

    __slots__ = ("scale",)

    def __init__(self, data: torch.Tensor, parts: Mapping[str, int]) -> None:
        super().__init__(data, parts)
        self.scale = torch.zeros(len(data), 1, dtype=torch.float32, device=data.device)

    @property
    def stored_dtype(self) -> torch.dtype | None:
        return None

    def load(self, part: str, tensor: torch.Tensor) -> None:
        rows = self.parts[part]
        rounded, scale = ops.quantize_rows(tensor.to(self.data.device))
        self.data[rows].copy_(rounded)
        self.scale[rows] = scale

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        for part in self.parts:
            wide = torch.empty_like(self.part(part), dtype=torch.bfloat16)
            self.load(part, wide.normal_(0, deviation, generator=generator))


class ChannelScale(Weight):
    """Scales of a checkpoint, one for each row: [rows, 1] float32."""

    def shapes(self, part: str) -> list[list[int]]:
        rows = len(self.part(part))
        return [[rows, 1], [rows]]

    def load(self, part: str, tensor: torch.Tensor) -> None:
        super().load(part, tensor.reshape(-1, 1))

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        self.data.fill_(deviation)


class TensorScale(ChannelScale):
    """Scales of a checkpoint, one for all rows of a part."""

    def shapes(self, part: str) -> list[list[int]]:
        return [[], [1]]

    def load(self, part: str, tensor: torch.Tensor) -> None:
        self.part(part).fill_(tensor.item())
