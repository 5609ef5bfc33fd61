"""Matrix products, several checkpoint matrices fused into one where they share their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from engine.layers.module import Module
from engine.layers.parameter import Weight
from engine.parallel.group import ALONE, Group, Output
from kernels import cpu, onednn, ops, rounded
from kernels.experts import ExpertMatrices
from kernels.gemm import UNMEASURED, Gemms
from kernels.rounded import Activations

PackedLinear = cpu.PackedLinear | onednn.PackedLinear


class Addition(Protocol):
    """What LoRA adapters add to the output of a linear layer, in steps that have some."""

    @property
    def is_active(self) -> bool:
        """Whether the current step has adapters."""
        ...

    def operands(self, num_tokens: int) -> tuple[torch.Tensor, ...] | None:
        """What is added for ``num_tokens`` tokens, as tensors for ``cuda_layer.Matrix``; None if
        only a call of this object can add it."""

    def __call__(
        self,
        x: torch.Tensor,
        product: Callable[[torch.Tensor], torch.Tensor],
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
    ) -> torch.Tensor:
        """``product(x)`` plus the addition; with ``gated``, ``silu_mul`` of the sum.

        x: [rows, in_features]. weight, bias: those of ``product`` if it is an unquantized, unpacked
        product, so that both can be computed by one kernel.
        """


class QuantizedWeight(Module, ABC):
    """Takes the place of the weight of a ``Linear``: the quantized tensors, by the checkpoint's
    names, and the product with them."""

    @abstractmethod
    def prepare(self) -> bool:
        """Convert the loaded tensors to the form that ``linear`` needs. Returns False if there is
        no kernel for them, and the layer should use ``dequantize`` instead."""

    @abstractmethod
    def dequantize(self) -> torch.Tensor:
        """[out_features, in_features] of the layer's dtype."""

    def rounds(self, num_rows: int) -> bool:
        """Whether ``linear`` rounds its input to FP8 for this number of rows; it then also takes
        input that is rounded already. Only once prepared."""
        return False

    @abstractmethod
    def linear(self, x: Activations, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ dequantize().T + bias``: [rows, out_features]. x: [rows, in_features]. Only once
        prepared."""

    @abstractmethod
    def stack(self, weights: Sequence[QuantizedWeight]) -> ExpertMatrices:
        """The weights of all experts of a layer, of which this is one, as one operand. Only once
        all are prepared."""

    def gated_linear(
        self, x: Activations, bias: torch.Tensor | None, *, round_out: bool = False
    ) -> Activations:
        """``silu_mul`` of ``linear``. round_out: the result may be returned rounded to FP8."""
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
        reduces: Group = ALONE,
        sections: Sequence[int] = (),
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """reduces: the inputs are sharded over these ranks, so that what a call returns is
        partial. sections: of the output features that the checkpoint holds as one tensor,
        each of which is sharded by itself."""
        self.reduces = reduces
        self.sections = tuple(sections)
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
        self.gemms: Gemms = UNMEASURED
        self.packed: PackedLinear | None = None

    def quantize(self, weight: Callable[[Linear], QuantizedWeight]) -> None:
        """Replace the weight, before it is loaded. weight: makes the quantized weight for a
        layer."""
        self.quantized = weight(self)

    def children(self) -> Iterator[tuple[str, Module | Weight]]:
        """A quantized weight's tensors have the place of the weight in the checkpoint."""
        if self.quantized is None:
            yield from super().children()
            return
        yield from self.quantized.children()
        if self.bias is not None:
            yield "bias", self.bias

    def load(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Load given tensors instead of a checkpoint's. Only for a layer of one part, and for
        weights that are quantized while they load.

        weight: [out_features, in_features]; bias: [out_features].
        """
        (part,) = self.parts
        for path, target in self.named_weights():
            tensor = weight if path == "weight" else bias
            assert tensor is not None, path
            target.load(part, tensor)

    def pack(self) -> None:
        if self.reduces.rank and self.bias is not None:
            self.bias.data.zero_()  # Rank 0 adds it to the sum.
        if self.quantized is not None:
            if self.quantized.prepare():
                return
            self.weight.data = self.quantized.dequantize()
            self.quantized = None
        self.packed = _pack(self.weight.data, self._bias())
        if self.packed is not None:
            self.weight.data = self.weight.data.new_empty(0)

    def rounds(self, num_rows: int) -> bool:
        """Whether the input is rounded to FP8 before the product, for this number of rows in the
        current step. If so, the operation that produces the input may round it."""
        return (
            self.quantized is not None
            and not self._is_added_to
            and rounded.fits(self.in_features, self.dtype)
            and self.quantized.rounds(num_rows)
        )

    def __call__(self, x: Activations) -> torch.Tensor:
        """[rows, out_features]. x: [rows, in_features], rounded to FP8 only if this layer
        ``rounds`` so many rows."""
        if self.addition is None or not isinstance(x, torch.Tensor):
            return self._product(x)
        return self._with(self.addition, x)

    def output(self, x: Activations) -> Output:
        """A call, for the block that ends with it."""
        return self.reduces.output(self(x))

    def _product(self, x: Activations) -> torch.Tensor:
        if self.quantized is not None:
            return self.quantized.linear(x, self._bias())
        assert isinstance(x, torch.Tensor), "rounded for a layer that is not quantized"
        if self.packed is not None:
            return self.packed(x)
        return self.gemms.linear(x, self.weight.data, self._bias())

    def gated(self, x: Activations, reader: Linear | None = None) -> Activations:
        """``silu(gate) * up``, where [gate | up] is the output: [rows, out_features / 2].

        x: as for a call. reader: the only layer that reads the result; if it ``rounds`` its input,
        the result is rounded for it."""
        if self.quantized is not None and not self._is_added_to:
            round_out = reader is not None and reader.rounds(x.shape[0])
            return self.quantized.gated_linear(x, self._bias(), round_out=round_out)
        assert isinstance(x, torch.Tensor), "rounded for a layer that is not quantized"
        if self.addition is not None and self.addition.is_active:
            return self._with(self.addition, x, gated=True)
        if self.packed is not None:
            return ops.silu_mul(self.packed(x))
        return self.gemms.gated_linear(x, self.weight.data, self._bias())

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
    """A language model head whose weight is that of the embedding."""

    def __init__(self, weight: Weight) -> None:
        self._weight = weight
        self._own: Linear | None = None
        self.gemms: Gemms = UNMEASURED
        self.packed: PackedLinear | None = None

    @property
    def weight(self) -> Weight:
        """The embedding's."""
        return self._weight

    @property
    def quantized(self) -> QuantizedWeight | None:
        return None if self._own is None else self._own.quantized

    def quantize(self, weight: Callable[[Linear], QuantizedWeight]) -> None:
        """Multiply with a quantized copy. The embedding itself stays unquantized: a step reads only
        a few of its rows.

        weight: makes a weight that is quantized while it loads.
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
        return self.gemms.linear(x, self._weight.data, None)


def _pack(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear | None:
    """The weight in the form of the fastest kernel for it; None: torch's own product is used."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if cpu.available():
        return cpu.PackedLinear(weight, bias)
    return onednn.PackedLinear(weight, bias) if onednn.available() else None
