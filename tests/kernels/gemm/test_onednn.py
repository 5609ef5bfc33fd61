from __future__ import annotations

import pytest
import torch

from kernels import onednn


@pytest.mark.skipif(not onednn.available(), reason="this torch has no oneDNN")
def test_packed_products_do_not_depend_on_the_number_of_rows() -> None:
    gen = torch.Generator().manual_seed(0)
    x, weight = torch.randn(70, 48, generator=gen), torch.randn(33, 48, generator=gen)
    bias = torch.randn(33, generator=gen)
    product = onednn.PackedLinear(weight, bias)
    whole = product(x)
    torch.testing.assert_close(whole, x @ weight.T + bias, rtol=1e-5, atol=1e-5)
    for rows in (1, 2, 7, 16, 33):
        assert torch.equal(product(x[:rows]), whole[:rows])
