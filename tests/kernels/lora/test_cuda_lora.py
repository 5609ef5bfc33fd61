"""Adapters of few tokens, in one launch, and of any, in two, against the products one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels import cuda, cuda_lora, ops, reference
from kernels.lora import AdapterTiles
from tests.kernels.lora.test_lora import PARTS, draw, naive, some_slots

CUDA = torch.device("cuda")
FEATURES = sum(PARTS)


def tiles_of(slots: np.ndarray) -> AdapterTiles:
    return AdapterTiles.of(slots, CUDA)


def inputs(num_tokens: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, k, generator=generator)
    weight = torch.randn(FEATURES, k, generator=generator) * k**-0.5
    bias = torch.randn(FEATURES, generator=generator)
    return x.to(CUDA, dtype), weight.to(CUDA, dtype), bias.to(CUDA, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [1, 3, 7, 8])
@pytest.mark.parametrize("k", [64, 704, 4096])
def test_it_equals_the_products(k: int, num_tokens: int, dtype: torch.dtype) -> None:
    cuda.load()
    matrices = draw(k, dtype, "cuda")
    x, weight, bias = inputs(num_tokens, k, dtype)
    assert cuda_lora.serves(x, weight)
    for slots in some_slots(num_tokens):
        for b in (None, bias):
            want = naive(torch.nn.functional.linear(x, weight, b), x, matrices, slots)
            got = cuda_lora.linear(x, weight, b, matrices, tiles_of(slots))
            torch.testing.assert_close(got.double().cpu(), want, rtol=2e-2, atol=5e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [1, 5, 8])
def test_gated_it_equals_the_gate_of_the_products(num_tokens: int, dtype: torch.dtype) -> None:
    """A part may end within the gates."""
    cuda.load()
    matrices = draw(256, dtype, "cuda")
    x, weight, _ = inputs(num_tokens, 256, dtype)
    for slots in some_slots(num_tokens):
        both = naive(torch.nn.functional.linear(x, weight), x, matrices, slots)
        got = cuda_lora.linear(x, weight, None, matrices, tiles_of(slots), gated=True)
        want = reference.silu_mul(both.to(dtype).double())
        torch.testing.assert_close(got.double().cpu(), want, rtol=3e-2, atol=5e-2)


@pytest.mark.gpu
def test_a_graph_reads_the_tables_that_are_there_when_it_runs() -> None:
    cuda.load()
    matrices = draw(256, torch.bfloat16, "cuda")
    x, weight, _ = inputs(4, 256, torch.bfloat16)
    tables = [tiles_of(np.array(slots)) for slots in ([0, 1, 2, 1], [-1, 0, -1, -1])]
    static = AdapterTiles(
        4,
        torch.full((4,), -1, dtype=torch.int32, device=CUDA),
        torch.full((4, 16), -1, dtype=torch.int32, device=CUDA),
    )

    def compute() -> torch.Tensor:
        return cuda_lora.linear(x, weight, None, matrices, static)

    compute()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compute()
    for table in tables:
        static.slots.fill_(-1)
        static.tokens.fill_(-1)
        static.slots[: len(table.slots)] = table.slots
        static.tokens[: len(table.slots)] = table.tokens
        graph.replay()
        torch.testing.assert_close(out, cuda_lora.linear(x, weight, None, matrices, table))


@pytest.mark.gpu
def test_launch_after_launch_finds_the_counters_at_0() -> None:
    """Steps with adapters and without, of layers of any size, one right after the other."""
    cuda.load()
    matrices = draw(256, torch.bfloat16, "cuda")
    x, weight, _ = inputs(8, 256, torch.bfloat16)
    plain = torch.nn.functional.linear(x, weight)
    cases = [
        (slots, cuda_lora.linear(x, weight, None, matrices, tiles_of(slots)))
        for slots in some_slots(8) * 200
    ]
    assert not cuda_lora._counters(x.device).any()
    for slots, got in cases:
        want = naive(plain, x, matrices, slots)
        torch.testing.assert_close(got.double().cpu(), want, rtol=2e-2, atol=5e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [1, 9, 16, 17, 256, 257, 1000])
@pytest.mark.parametrize("k", [64, 704, 4096])
def test_around_a_product_they_add_what_the_products_add(
    k: int, num_tokens: int, dtype: torch.dtype
) -> None:
    cuda.load()
    matrices = draw(k, dtype, "cuda")
    assert cuda_lora.takes(matrices, num_tokens)
    x = inputs(num_tokens, k + 8, dtype)[0][:, :k]
    product = torch.randn(num_tokens, FEATURES, device=CUDA).to(dtype)
    for slots in some_slots(num_tokens):
        tiles, out = tiles_of(slots), product.clone()
        low = cuda_lora.shrink_lora(x, matrices, tiles)
        cuda_lora.expand_lora(out, low, matrices, tiles)
        want = naive(product, x, matrices, slots)
        torch.testing.assert_close(out.double().cpu(), want, rtol=2e-2, atol=5e-2)
        assert torch.equal(out[slots < 0], product[slots < 0])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("parts", "k", "num_tokens"), [((96, 44, 8), 64, 40), (PARTS, 72, 40), (PARTS, 64, 1025)]
)
def test_sizes_that_they_do_not_take_are_left_to_others(
    parts: tuple[int, ...], k: int, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "_registry", dict(ops._registry))
    cuda.load()
    cuda_lora.register()
    matrices = draw(k, torch.bfloat16, "cuda", parts)
    assert not cuda_lora.takes(matrices, num_tokens)
    slots = some_slots(num_tokens)[0]
    x, out = (torch.randn(num_tokens, size, device=CUDA).bfloat16() for size in (k, sum(parts)))
    want = naive(out, x, matrices, slots)
    ops.expand_lora(out, ops.shrink_lora(x, matrices, tiles_of(slots)), matrices, tiles_of(slots))
    torch.testing.assert_close(out.double().cpu(), want, rtol=2e-2, atol=5e-2)
    ops.resolve.cache_clear()


def test_many_tokens_floats_and_other_devices_are_not_served() -> None:
    weight = torch.zeros(16, 64, dtype=torch.bfloat16)
    assert not cuda_lora.serves(weight[:1], weight)
    if torch.cuda.is_available():
        x, weight = weight.new_zeros(9, 64, device=CUDA), weight.to(CUDA)
        assert not cuda_lora.serves(x, weight)
        assert cuda_lora.serves(x[:8], weight)
        assert not cuda_lora.serves(x[:8].float(), weight)
        assert not cuda_lora.serves(x[:8], weight[:8])


@pytest.mark.gpu
def test_what_starts_between_vectors_is_refused() -> None:
    cuda.load()
    matrices = draw(64, torch.bfloat16, "cuda")
    x, weight, _ = inputs(4, 64, torch.bfloat16)
    shifted = torch.zeros(4 * 64 + 1, dtype=torch.bfloat16, device=CUDA)[1:].view(4, 64)
    tiles = tiles_of(np.array([0, 1, 2, 1]))
    assert not cuda_lora.linear(x, weight, None, matrices, tiles).isnan().any()
    with pytest.raises(ValueError, match="x must start at a multiple of 16 bytes"):
        cuda_lora.linear(shifted, weight, None, matrices, tiles)
