"""Matrix products, several checkpoint matrices fused into one where they share their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from engine.layers.module import Module
from engine.layers.parameter import Weight
from kernels import cpu, onednn, ops, rounded
from kernels.experts import ExpertMatrices
from kernels.products import UNMEASURED, Products
from kernels.rounded import Activations

PackedLinear = cpu.PackedLinear | onednn.PackedLinear


class Addition(Protocol):
    """What is added to the output of a linear layer, in some steps."""

    @property
    def is_active(self) -> bool: ...

    def joined(self, num_tokens: int) -> tuple[torch.Tensor, ...] | None:
        """What a call with so many tokens adds, for ``cuda_layer.Matrix``; None: only a call can
        add it."""

    def __call__(
        self,
        x: torch.Tensor,
        product: Callable[[torch.Tensor], torch.Tensor],
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
    ) -> torch.Tensor:
        """``product(x)`` and what is added to it for the inputs ``x``; gated: ``silu_mul`` of that.

        weight, bias: what ``product`` multiplies with, where it is plain.
        """


class QuantizedWeight(Module, ABC):
    """What stands for the weight of a ``Linear``: tensors with a checkpoint's names, and the
    product with them."""

    @abstractmethod
    def prepare(self) -> bool:
        """For products, once loaded. False where ``dequantize`` is the best that can be done."""

    @abstractmethod
    def dequantize(self) -> torch.Tensor:
        """[out_features, in_features] of the layer's dtype."""

    def rounds(self, num_rows: int) -> bool:
        """Whether ``linear`` rounds so many rows to FP8, and takes them so. Once prepared."""
        return False

    @abstractmethod
    def linear(self, x: Activations, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ dequantize().T + bias``; x: [rows, in_features]. Once prepared."""

    @abstractmethod
    def stack(self, weights: Sequence[QuantizedWeight]) -> ExpertMatrices:
        """Weights like this one, of experts, as one. Once all are prepared."""

    def gated_linear(
        self, x: Activations, bias: torch.Tensor | None, *, round_out: bool = False
    ) -> Activations:
        """``silu_mul`` of ``linear``. round_out: the result may be rounded to FP8."""
        out = self.linear(x, bias)
        return rounded.silu_mul(out) if round_out else ops.silu_mul(out)


class Linear(Module):
    """``x @ weight.T + bias``; ``parts`` maps checkpoint names to their output features."""

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.addition: Addition | None = None
        out_features = sum(parts.values())
        self.in_features, self.parts = in_features, parts
        shape = out_features, in_features
        self.weight: Weight = Weight.empty(shape, parts, dtype=dtype, device=device)
        self.dtype, self.device = dtype, device
        self.quantized: QuantizedWeight | None = None
        self.bias: Weight | None = None
        if bias:
            self.bias = Weight(torch.empty(out_features, dtype=dtype, device=device), parts)
        self.products: Products = UNMEASURED
        self.packed: PackedLinear | None = None

    def quantize(self, weight: Callable[[Linear], QuantizedWeight]) -> None:
        """weight: what stands for the weight of a linear layer."""
        self.quantized = weight(self)

    def children(self) -> Iterator[tuple[str, Module | Weight]]:
        """The tensors of a quantized weight stand in the checkpoint where the weight would."""
        if self.quantized is None:
            yield from super().children()
            return
        yield from self.quantized.children()
        if self.bias is not None:
            yield "bias", self.bias

    def load(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """From tensors in place of a checkpoint's; a quantized weight must be rounded as it loads.

        Of one part, weight: [out_features, in_features].
        """
        (part,) = self.parts
        for path, target in self.named_weights():
            tensor = weight if path == "weight" else bias
            assert tensor is not None, path
            target.load(part, tensor)

    def pack(self) -> None:
        if self.quantized is not None:
            if self.quantized.prepare():
                return
            self.weight.data = self.quantized.dequantize()
            self.quantized = None
        self.packed = _pack(self.weight.data, self._bias())
        if self.packed is not None:
            self.weight.data = self.weight.data.new_empty(0)

    def rounds(self, num_rows: int) -> bool:
        """Whether so many rows of x are rounded to FP8 before the product, in this step: what makes
        them may do that."""
        return (
            self.quantized is not None
            and not self._is_added_to
            and rounded.fits(self.in_features, self.dtype)
            and self.quantized.rounds(num_rows)
        )

    def __call__(self, x: Activations) -> torch.Tensor:
        """x: [rows, in_features], rounded only where it ``rounds`` them."""
        if self.addition is None or not isinstance(x, torch.Tensor):
            return self._product(x)
        return self._with(self.addition, x)

    def _product(self, x: Activations) -> torch.Tensor:
        if self.quantized is not None:
            return self.quantized.linear(x, self._bias())
        assert isinstance(x, torch.Tensor), "rounded for a layer that is not quantized"
        if self.packed is not None:
            return self.packed(x)
        return self.products.linear(x, self.weight.data, self._bias())

    def gated(self, x: Activations, reader: Linear | None = None) -> Activations:
        """``silu(gate) * up`` of an output that is [gate | up].

        reader: alone reads the result, which may come rounded for it.
        """
        if self.quantized is not None and not self._is_added_to:
            round_out = reader is not None and reader.rounds(x.shape[0])
            return self.quantized.gated_linear(x, self._bias(), round_out=round_out)
        assert isinstance(x, torch.Tensor), "rounded for a layer that is not quantized"
        if self.addition is not None and self.addition.is_active:
            return self._with(self.addition, x, gated=True)
        if self.packed is not None:
            return ops.silu_mul(self.packed(x))
        return self.products.gated_linear(x, self.weight.data, self._bias())

    @property
    def _is_added_to(self) -> bool:
        return self.addition is not None and self.addition.is_active

    def _with(self, addition: Addition, x: torch.Tensor, *, gated: bool = False) -> torch.Tensor:
        if self.packed is not None or self.quantized is not None:
            return addition(x, self._product, gated=gated)
        return addition(x, self._product, self.weight.data, self._bias(), gated=gated)

    def _bias(self) -> torch.Tensor | None:
        return None if self.bias is None else self.bias.data


class TiedLinear(Module):
    """A language model head that shares the weight of the embedding."""

    def __init__(self, weight: Weight) -> None:
        self._weight = weight
        self._own: Linear | None = None
        self.products: Products = UNMEASURED
        self.packed: PackedLinear | None = None

    @property
    def weight(self) -> Weight:
        """The embedding's."""
        return self._weight

    @property
    def quantized(self) -> QuantizedWeight | None:
        return None if self._own is None else self._own.quantized

    def quantize(self, weight: Callable[[Linear], QuantizedWeight]) -> None:
        """Multiply with a quantized copy. The embedding stays as it is: few of its rows are read.

        weight: one that is loaded from a plain weight.
        """
        (vocab_size, hidden_size), data = self._weight.data.shape, self._weight.data
        self._own = Linear(
            hidden_size, {"": vocab_size}, bias=False, dtype=data.dtype, device=data.device
        )
        self._own.quantize(weight)

    def pack(self) -> None:
        if self._own is None:
            self.packed = _pack(self._weight.data, None)
        else:
            self._own.load(self._weight.data)
            self._own.pack()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._own is not None:
            return self._own(x)
        if self.packed is not None:
            return self.packed(x)
        return self.products.linear(x, self._weight.data, None)


def _pack(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear | None:
    """The fastest product for the weight; None: torch's own."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if cpu.available():
        return cpu.PackedLinear(weight, bias)
    return onednn.PackedLinear(weight, bias) if onednn.available() else None
