from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import ops, products


@pytest.mark.parametrize("rows", [1, 16, 17])
def test_without_measurements_the_library_serves(rows: int) -> None:
    gen = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 64, generator=gen), torch.randn(32, 64, generator=gen)
    bias = torch.randn(32, generator=gen)
    assert torch.equal(products.linear(x, weight, bias), F.linear(x, weight, bias))
    gated = products.gated_linear(x, weight, bias)
    assert torch.equal(gated, ops.silu_mul(F.linear(x, weight, bias)))


def test_rows_between_two_measured_sizes_go_by_the_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(32, 64)
    monkeypatch.setattr(products, "_faster", {(weight.shape, weight.dtype, False): {1, 8}})

    def own(rows: int, *, gated: bool = False) -> bool:
        return products._prefers_own(torch.zeros(rows, 64), weight, gated=gated)

    assert [rows for rows in range(1, 20) if own(rows)] == [1, 5, 6, 7, 8]
    assert not own(1, gated=True)
