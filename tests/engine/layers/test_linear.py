from __future__ import annotations

import pytest
import torch

from engine.layers.linear import Linear, TiedLinear
from engine.layers.parameter import Weight

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
