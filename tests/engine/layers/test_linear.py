from __future__ import annotations

import pytest
import torch

from engine.layers.linear import Linear, TiedLinear
from engine.layers.parameter import Weight
from engine.quant.fp8 import Fp8
from kernels import quantized
from kernels.experts import Fp8Experts

CPU = torch.device("cpu")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packing_does_not_change_the_product(bias: bool, dtype: torch.dtype) -> None:
    layer = Linear(16, {"a": 8, "b": 4}, bias=bias, dtype=dtype, device=CPU)
    layer.weight.data.normal_()
    if layer.bias is not None:
        layer.bias.data.normal_()
    x = torch.randn(5, 16).to(dtype)
    before = layer(x)
    layer.pack()
    torch.testing.assert_close(layer(x), before, rtol=1e-5, atol=1e-5)
    assert before.shape == (5, 12)


def test_a_tied_head_multiplies_by_the_embedding() -> None:
    weight = Weight(torch.randn(20, 8))
    head = TiedLinear(weight)
    x = torch.randn(3, 8)
    torch.testing.assert_close(head(x), x @ weight.data.T)
    head.pack()
    torch.testing.assert_close(head(x), x @ weight.data.T, rtol=1e-5, atol=1e-5)
    assert not list(head.named_weights())
    assert weight.data.shape == (20, 8)


def test_a_quantized_tied_head_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "serves", lambda tensor: True)
    weight = Weight(torch.randn(20, 8))
    before, head, x = weight.data.clone(), TiedLinear(weight), torch.randn(3, 8)
    assert head.quantized is None
    head.quantize(Fp8(online=True).weight)
    assert not list(head.named_weights()), "nothing of it is in a checkpoint"
    head.pack()
    assert head.quantized is not None
    torch.testing.assert_close(head(x), x @ head.quantized.dequantize().T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head.quantized.dequantize(), before, rtol=2**-4, atol=0.01)
    assert torch.equal(weight.data, before)


@pytest.mark.parametrize("features", [16, 20])
def test_a_weight_in_fp8_of_any_number_of_features(
    features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU keeps it, with rows added up to a multiple of 16, and a bias."""
    monkeypatch.setattr(quantized, "serves", lambda tensor: True)
    layer = Linear(8, {"": features}, bias=True, dtype=torch.float32, device=CPU)
    layer.quantize(Fp8(online=True).weight)
    weight, bias = torch.randn(features, 8), torch.randn(features)
    layer.load(weight, bias)
    layer.pack()
    assert layer.quantized is not None
    meant, x = layer.quantized.dequantize(), torch.randn(3, 8)
    assert meant.shape == (features, 8)
    want = x @ meant.T + bias
    torch.testing.assert_close(layer(x), want, rtol=1e-5, atol=1e-5)
    gate, up = want.chunk(2, 1)
    gated = layer.gated(x)
    assert isinstance(gated, torch.Tensor)
    torch.testing.assert_close(gated, torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-5)
    stacked = layer.quantized.stack([layer.quantized] * 2)
    assert isinstance(stacked, Fp8Experts)
    assert stacked.weight.shape == (2, features, 8)
    assert stacked.scale.shape == (2, features, 1)
