from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels import cpu

pytestmark = pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("out_features", [1, 31, 32, 33, 200])
@pytest.mark.parametrize("in_features", [1, 7, 48, 1024, 2600])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_packed_product_equals_the_formula(
    num_threads: int, out_features: int, in_features: int, with_bias: bool
) -> None:
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(21, in_features, generator=gen)
    weight = torch.randn(out_features, in_features, generator=gen)
    bias = torch.randn(out_features, generator=gen) if with_bias else None
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    out = cpu.PackedLinear(weight, bias)(x)
    scale = in_features**0.5
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("out_features", [33, 64])
@pytest.mark.parametrize("in_features", [48, 1500])
def test_a_row_gets_the_same_bits_among_any_rows(
    num_threads: int, out_features: int, in_features: int
) -> None:
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(531, in_features, generator=gen)
    weight = torch.randn(out_features, in_features, generator=gen)
    product = cpu.PackedLinear(weight, torch.randn(out_features, generator=gen))
    whole = product(x)
    for first, rows in [(0, 1), (0, 2), (3, 7), (8, 8), (5, 13), (250, 270), (530, 1)]:
        assert torch.equal(product(x[first : first + rows]), whole[first : first + rows])


def test_no_rows_give_no_rows(num_threads: int) -> None:
    assert cpu.PackedLinear(torch.ones(3, 5), None)(torch.empty(0, 5)).shape == (0, 3)


def test_the_packed_weight_and_the_bias_are_the_products_own() -> None:
    """Whoever gave the weight may let go of it, and x need not be contiguous."""
    x, weight = torch.randn(4, 12)[:, ::2], torch.randn(5, 6)
    expected = x @ weight.T
    product = cpu.PackedLinear(weight, None)
    weight.zero_()
    torch.testing.assert_close(product(x), expected)
