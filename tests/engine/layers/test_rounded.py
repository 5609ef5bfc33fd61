"""Inputs that come rounded to FP8 to the linear layers that would round them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.mlp import GatedMLP
from engine.layers.norm import OffsetRMSNorm, RMSNorm
from engine.parallel.group import whole
from kernels import cuda, ops, reference
from kernels.experts import ExpertMatrices
from kernels.rounded import Activations, RoundedRows

CPU = torch.device("cpu")
MIN_ROWS = 3
"""From so many on, the layers here round."""


class RoundingWeight(QuantizedWeight):
    """The layer's own weight; x is rounded, by whoever comes first."""

    def __init__(self, linear: Linear) -> None:
        self._weight = linear.weight.data
        self.given: list[type] = []

    def prepare(self) -> bool:
        return True

    def dequantize(self) -> torch.Tensor:
        return self._weight

    def stack(self, weights: Sequence[QuantizedWeight]) -> ExpertMatrices:
        raise NotImplementedError

    def rounds(self, num_rows: int) -> bool:
        return num_rows >= MIN_ROWS

    def linear(self, x: Activations, bias: torch.Tensor | None) -> torch.Tensor:
        self.given.append(type(x))
        if isinstance(x, torch.Tensor):
            if not self.rounds(len(x)):
                return torch.nn.functional.linear(x, self._weight, bias)
            x = RoundedRows(*reference.quantize_rows(x), x.dtype)
        wide = (x.values.float() * x.scale).to(x.dtype)
        return torch.nn.functional.linear(wide, self._weight, bias)


@dataclass
class Adapters:
    """An addition of nothing."""

    is_active: bool

    def operands(self, num_tokens: int) -> None:
        return None

    def __call__(
        self,
        x: torch.Tensor,
        product: Callable[[torch.Tensor], torch.Tensor],
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
    ) -> torch.Tensor:
        assert isinstance(x, torch.Tensor)
        return ops.silu_mul(product(x)) if gated else product(x)


@pytest.fixture(autouse=True)
def _kernels_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their contracts, for tensors of a CPU."""

    def rms_norm(
        x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.quantize_rows(ops.rms_norm(x, weight, eps, residual))

    def silu_mul(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.quantize_rows(ops.silu_mul(x))

    monkeypatch.setattr(cuda.native, "rms_norm_rounded", rms_norm, raising=False)
    monkeypatch.setattr(cuda.native, "silu_mul_rounded", silu_mul, raising=False)


def block(hidden: int = 32, width: int = 64) -> tuple[RMSNorm, GatedMLP]:
    torch.manual_seed(0)
    norm = RMSNorm(hidden, 1e-5, dtype=torch.bfloat16, device=CPU)
    mlp = GatedMLP(hidden, width, bias=False, dtype=torch.bfloat16, device=CPU)
    norm.weight.data.normal_()
    for linear in (mlp.gate_up_proj, mlp.down_proj):
        linear.weight.data.normal_(0, 0.1)
        linear.quantize(RoundingWeight)
    return norm, mlp


def given(mlp: GatedMLP) -> list[type]:
    """What the products of both layers got, in their order."""
    found = []
    for linear in (mlp.gate_up_proj, mlp.down_proj):
        assert isinstance(linear.quantized, RoundingWeight)
        found += linear.quantized.given
    return found


@pytest.mark.parametrize("rows", [1, MIN_ROWS, 8])
def test_rounded_sooner_the_result_is_the_same(rows: int) -> None:
    norm, mlp = block()
    x, residual = torch.randn(2, rows, 32, dtype=torch.bfloat16)
    kept = residual.clone()
    plain = mlp.down_proj(ops.silu_mul(mlp.gate_up_proj(norm(x, kept))))
    assert given(mlp) == [torch.Tensor, torch.Tensor]
    got = whole(mlp(norm.into(mlp.reader, x, residual)))
    assert torch.equal(got, plain)
    assert torch.equal(residual, kept)
    expected = RoundedRows if rows >= MIN_ROWS else torch.Tensor
    assert given(mlp) == [torch.Tensor, expected, torch.Tensor, expected]


@pytest.mark.parametrize("active", [False, True])
def test_adapters_get_what_was_not_rounded(active: bool) -> None:
    norm, mlp = block()
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    want = whole(mlp(norm.into(mlp.reader, x)))
    mlp.gate_up_proj.addition = mlp.down_proj.addition = Adapters(active)
    assert torch.equal(whole(mlp(norm.into(mlp.reader, x))), want)
    expected = torch.Tensor if active else RoundedRows
    assert given(mlp) == [RoundedRows, expected, RoundedRows, expected]


def test_layers_that_are_not_quantized_get_tensors() -> None:
    norm = RMSNorm(32, 1e-5, dtype=torch.bfloat16, device=CPU)
    norm.weight.data.fill_(1)
    linear = Linear(32, {"": 16}, bias=False, dtype=torch.bfloat16, device=CPU)
    assert not linear.rounds(100)
    assert isinstance(norm.into(linear, torch.randn(4, 32, dtype=torch.bfloat16)), torch.Tensor)
    assert isinstance(norm.into(None, torch.randn(4, 32, dtype=torch.bfloat16)), torch.Tensor)


def test_a_norm_with_wider_weights_never_rounds() -> None:
    _, mlp = block()
    norm = OffsetRMSNorm(32, 1e-5, dtype=torch.bfloat16, device=CPU)
    norm.weight.data.zero_()
    norm.pack()
    x = torch.randn(8, 32, dtype=torch.bfloat16)
    made = norm.into(mlp.reader, x)
    assert isinstance(made, torch.Tensor)
    assert torch.equal(made, norm(x))
