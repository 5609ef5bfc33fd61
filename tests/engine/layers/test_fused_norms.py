"""Norms inside the products beside them: the same numbers, but for the order of rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.attention.torch_ref import TorchAttention
from engine.errors import ConfigError
from engine.layers.norm import OffsetRMSNorm
from engine.models.llama import LlamaModel
from engine.runner.load import _fuse_norms
from tests.engine.layers.test_fused_decoder import CPU, model, run

SHAPES = [[(1, 0)], [(1, 5), (1, 30), (1, 0)], [(16, 3)], [(5, 20), (1, 9), (8, 0)]]
TOO_MANY = [(9, 3), (8, 0)]


def made(*, bias: bool = False) -> LlamaModel:
    return model(head_dim=32, bias=bias, hidden=64, inner=128)


@pytest.mark.parametrize("shapes", [*SHAPES, TOO_MANY])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_operations_one_by_one(shapes: list[tuple[int, int]], bias: bool) -> None:
    attention = TorchAttention(CPU, torch.float32)
    of = made(bias=bias)
    expected, cache = run(of, shapes, attention)
    assert of.fuse_norms()
    out, fused_cache = run(of, shapes, attention)
    torch.testing.assert_close(out, expected, rtol=2e-4, atol=2e-4)
    for ours, theirs in zip(fused_cache, cache, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)


def test_few_tokens_go_through_it_and_many_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    of = made()
    assert of.fuse_norms()
    calls: list[int] = []

    class Counting:
        def __init__(self, inner: Any) -> None:
            self.serves = inner.serves
            self._inner = inner

        def __call__(self, x: torch.Tensor, *rest: Any) -> Any:
            calls.append(len(x))
            return self._inner(x, *rest)

    monkeypatch.setattr(of, "_fused_norms", Counting(of._fused_norms))
    attention = TorchAttention(CPU, torch.float32)
    run(of, [(16, 0)], attention)
    run(of, TOO_MANY, attention)
    run(of, [(2, 0)], attention, {1: torch.empty(2, 64)})
    assert calls == [16], "more tokens, or taps, need the layers one by one"


def test_layers_of_other_parts_are_left_alone() -> None:
    gelu = made()
    gelu.layers[1].mlp.activation = "gelu_pytorch_tanh"  # type: ignore[union-attr]
    assert not gelu.fuse_norms()
    offset = made()
    norm = OffsetRMSNorm(64, 1e-5, dtype=torch.float32, device=CPU)
    offset.layers[2].input_layernorm = norm
    assert not offset.fuse_norms()
    assert not model().fuse_norms(), "42 features are no multiple of 64"


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bfloat16, not torch\.float32"):
        _fuse_norms(object(), torch.float32, has_kernels=True)  # type: ignore[arg-type]


def test_a_model_that_cannot_is_refused() -> None:
    class Other:
        def fuse_norms(self) -> bool:
            return False

    with pytest.raises(ConfigError, match="layers made as Llama"):
        _fuse_norms(Other(), torch.bfloat16, has_kernels=True)  # type: ignore[arg-type]
