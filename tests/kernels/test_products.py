from __future__ import annotations

from collections.abc import Callable

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


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch was told to prefer, in order."""
    told: list[str] = []
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", told.append)
    return told


def test_the_library_goes_by_the_measured_rows(
    preferred: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(32, 64)
    monkeypatch.setattr(products, "_faster_lt", {(weight.shape, weight.dtype): {64, 8192}})
    chosen = []
    for rows in (1, 16, 17, 32, 33, 64, 65, 2049, 9000):
        x = torch.randn(rows, 64)
        assert torch.equal(products.linear(x, weight, None), F.linear(x, weight))
        if preferred:
            assert preferred == ["cublaslt", "default"], "not given back"
            chosen.append(rows)
            preferred.clear()
    assert chosen == [33, 64, 2049, 9000]


def test_the_other_library_must_be_clearly_faster(
    preferred: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 128 rows it is, with 256 by a hair only, otherwise it is slower."""
    times = {128: 50.0, 256: 99.0}

    def measured(product: Callable[[], torch.Tensor], _flushed: torch.Tensor) -> float:
        preferred.clear()
        rows = product().shape[0]
        return times.get(rows, 101.0) if preferred else 100.0

    monkeypatch.setattr(products, "_microseconds", measured)
    monkeypatch.setattr(products, "_faster_lt", {})
    monkeypatch.setattr(products, "_FLUSHED_BYTES", 1)
    weight = torch.randn(16, 8).bfloat16()
    products.measure_libraries(weight)
    assert products._faster_lt == {(weight.shape, torch.bfloat16): {128}}
    products.measure_libraries(torch.randn(16, 8))
    assert len(products._faster_lt) == 1, "float32 is left to torch"


@pytest.mark.gpu
def test_either_library_multiplies_alike() -> None:
    gen = torch.Generator(device="cuda").manual_seed(0)
    weight = torch.randn(384, 256, generator=gen, device="cuda").bfloat16()
    for rows in (40, 300):
        x = torch.randn(rows, 256, generator=gen, device="cuda").bfloat16()
        with products._cublaslt():
            other = F.linear(x, weight)
        exact = x.double() @ weight.double().T
        assert (other.double() - exact).norm() / exact.norm() < 5e-3
    products.measure_libraries(weight)
