"""Adapters in the launch of a layer's product, and in two launches of their own, without a GPU: the
kernels' own sources (``emulated``), against the products one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels import cuda_lora, reference
from kernels.lora import AdapterTiles, LoraMatrices, tile_rows, tile_table
from tests.kernels import emulated
from tests.kernels.gemm.test_quantized import randn
from tests.kernels.lora.test_lora import PARTS, draw, naive, some_slots
from tests.pairs import every_pair

SOURCES = ("lora/lora_linear.cu", "lora/lora_tiles.cu")
UNUSED_TILES = 2


@pytest.fixture(scope="module")
def library() -> Any:
    return emulated.native(SOURCES, threads=17 * 32)


def multiply(
    library: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    matrices: LoraMatrices,
    slots: np.ndarray,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """What nobody wrote is NaN."""
    features = weight.shape[0]
    out = torch.full((len(x), features // (1 + gated)), float("nan"), dtype=x.dtype)
    counters = torch.zeros(2, dtype=torch.int32)
    assert len(x) <= cuda_lora.MAX_TOKENS
    low, adapters = described(x, matrices, slots, tile_rows(len(x)))
    library.lora_linear(low, counters, x, weight, bias, *adapters, gated=gated, out=out)
    assert not counters.any()
    return out


def described(
    x: torch.Tensor, matrices: LoraMatrices, slots: np.ndarray, rows: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Memory for sums, and the adapters of the tokens in tiles of ``rows``."""
    num_tokens = len(x)
    _, parts, max_rank, _ = matrices.down.shape
    table = torch.from_numpy(tile_table(slots, rows, -(-num_tokens // rows) + 4 + UNUSED_TILES))
    tiles = AdapterTiles.view(table, num_tokens, rows)
    low = torch.full((cuda_lora.SLICES, num_tokens, parts * max_rank), float("nan"))
    return low, cuda_lora.described(matrices, tiles)


@pytest.mark.parametrize(
    ("size", "num_tokens", "dtype"),
    every_pair(
        [((16, 8, 8), 1152), ((40, 8, 16), 64), (PARTS, 320)],
        [1, 3, 8],
        [torch.bfloat16, torch.float16],
    ),
)
def test_it_equals_the_products(
    size: tuple[tuple[int, ...], int], num_tokens: int, dtype: torch.dtype, library: Any
) -> None:
    """parts: for one, two and more CTAs, which decide how many warps one has; in the last the
    last CTA has features for half its tiles."""
    parts, k = size
    matrices = draw(k, dtype, "cpu", parts)
    x = randn(num_tokens, k + 8, seed=num_tokens).to(dtype)[:, :k]
    weight = (randn(sum(parts), k, seed=2) * k**-0.5).to(dtype)
    bias = randn(sum(parts), seed=3).to(dtype)
    for slots in some_slots(num_tokens):
        want = naive(torch.nn.functional.linear(x, weight, bias), x, matrices, slots)
        got = multiply(library, x, weight, bias, matrices, slots)
        torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("num_tokens", [1, 3, 8])
def test_gated_it_equals_the_gate_of_the_products(num_tokens: int, library: Any) -> None:
    """A part may end within the gates."""
    dtype = torch.bfloat16
    matrices = draw(192, dtype, "cpu")
    x = randn(num_tokens, 192, seed=num_tokens).to(dtype)
    weight = (randn(sum(PARTS), 192, seed=2) * 192**-0.5).to(dtype)
    for slots in some_slots(num_tokens):
        both = naive(torch.nn.functional.linear(x, weight), x, matrices, slots)
        got = multiply(library, x, weight, None, matrices, slots, gated=True)
        want = reference.silu_mul(both.to(dtype).double())
        torch.testing.assert_close(got.double(), want, rtol=3e-2, atol=5e-2)


@pytest.mark.parametrize("num_tokens", [3, 8])
def test_tokens_do_not_meet_the_adapters_of_others(num_tokens: int, library: Any) -> None:
    """Who has none gets the bits of a product without any."""
    matrices = draw(128, torch.bfloat16, "cpu")
    x = randn(num_tokens, 128, seed=1).to(torch.bfloat16)
    weight = randn(sum(PARTS), 128, seed=2).to(torch.bfloat16)
    slots = np.arange(num_tokens) % 5 - 1
    plain = multiply(library, x, weight, None, matrices, np.full(num_tokens, -1))
    got = multiply(library, x, weight, None, matrices, slots)
    without = torch.from_numpy((slots < 0) | (slots == 3))
    assert torch.equal(got[without], plain[without])
    assert (got[~without] != plain[~without]).any(1).all()


@pytest.mark.parametrize(
    ("size", "tile", "dtype"),
    every_pair(
        [((16, 8, 8), 64), (PARTS, 704), ((200, 136, 8), 320)],
        [(1, 16), (40, 16), (17, 64), (70, 64)],
        [torch.bfloat16, torch.float16],
    ),
)
def test_around_a_product_they_add_what_the_products_add(
    size: tuple[tuple[int, ...], int],
    tile: tuple[int, int],
    dtype: torch.dtype,
    library: Any,
) -> None:
    """The parts are of one CTA's features each, the last also of more and not of whole warps'."""
    (parts, k), (num_tokens, rows) = size, tile
    matrices = draw(k, dtype, "cpu", parts)
    x = randn(num_tokens, k + 8, seed=num_tokens).to(dtype)[:, :k]
    product = randn(num_tokens, sum(parts), seed=2).to(dtype)
    for slots in some_slots(num_tokens):
        out = product.clone()
        low, adapters = described(x, matrices, slots, rows)
        library.shrink_lora(x, *adapters, low=low)
        library.expand_lora(out, low, *adapters)
        want = naive(product, x, matrices, slots)
        torch.testing.assert_close(out.double(), want, rtol=2e-2, atol=5e-2)
        assert torch.equal(out[slots < 0], product[slots < 0])
