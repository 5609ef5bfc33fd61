"""GEMMs with FP8 weights, by row and by block: interpreted on a CPU, and on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import quantized, reference
from tests.kernels.interpreter import interpret

pytest.importorskip("triton")
from kernels.triton import fp8_linear

Block = tuple[int, int]
FP8 = torch.float8_e4m3fn


def draw(
    rows: int, features: int, k: int, block: Block | None, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight, scale; x is the same again rounded to FP8: small integers, and the largest number
    there is once in each piece."""
    gen = torch.Generator().manual_seed(rows + features)
    x = torch.randint(-15, 16, (rows, k), generator=gen).float()
    at = torch.randint(0, 128, (rows, k // 128), generator=gen) + torch.arange(0, k, 128)
    x.scatter_(1, at, reference.FP8_MAX)
    weight = torch.randn(features, k, generator=gen).to(FP8)
    block_rows, columns = block or (1, k)
    shape = -(-features // block_rows), -(-k // columns)
    scale = torch.rand(shape, generator=gen) + 0.1
    return x.to(device), weight.to(device), scale.to(device)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


SHAPES: list[tuple[int, int, int, Block | None]] = [
    (3, 70, 256, None),
    (3, 70, 256, (128, 128)),
    (20, 300, 384, (32, 128)),
    (5, 40, 6144, None),  # the sum over k is shared
    (5, 40, 6144, (16, 128)),
    (70, 130, 256, (128, 128)),
    (260, 70, 256, (128, 128)),  # with the whole weight widened
    (260, 70, 256, None),
]
"""(rows, features, k, block)"""


def check(rows: int, features: int, k: int, block: Block | None, device: str) -> None:
    x, weight, scale = draw(rows, features, k, block, device)
    want = x.double() @ reference.dequantize_fp8(weight, scale, block).double().T
    for round_x in (True, False):
        got = fp8_linear.linear_fp8(x, weight, scale, block, round_x=round_x)
        # Tensor cores add up products of FP8 in fewer than 32 bits.
        limit = 3e-3 if round_x and device == "cuda" else 1e-5
        assert relative_error(got, want) < limit
    padded = torch.cat((x, x), 1)[:, :k]  # rows further apart
    assert torch.equal(
        fp8_linear.linear_fp8(padded, weight, scale, block),
        fp8_linear.linear_fp8(x, weight, scale, block),
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run here")
@pytest.mark.parametrize(
    "shapes", ["SHAPES[:2]", pytest.param("SHAPES[2:]", marks=pytest.mark.nightly)]
)
def test_interpreted_it_equals_the_reference(shapes: str) -> None:
    code = (
        "from tests.kernels.gemm.test_fp8_linear import *\n"
        f"for shape in {shapes}:\n"
        "    check(*shape, 'cpu')\n"
    )
    interpret(code)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "features", "k", "block"), SHAPES)
def test_on_a_gpu_it_equals_the_reference(
    rows: int, features: int, k: int, block: Block | None
) -> None:
    check(rows, features, k, block, "cuda")


def test_blocks_of_any_rows() -> None:
    """Each element times the scale of its block."""
    weight = torch.ones(5, 6).to(FP8)
    scale = torch.tensor([[1.0, 2], [3, 4]])
    meant = reference.dequantize_fp8(weight, scale, (3, 4))
    assert meant.tolist() == [[1, 1, 1, 1, 2, 2]] * 3 + [[3, 3, 3, 3, 4, 4]] * 2


WIDE = [(576, 7168), (4096, 4096), (28672, 4096), (4096, 14336)]
"""(features, k)"""
LIMIT = {torch.bfloat16: 4e-3, torch.float16: 6e-4}


@pytest.mark.gpu
@pytest.mark.usefixtures("triton_products")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 9, 16, 17, 64, 100, 700])
@pytest.mark.parametrize(("features", "k"), WIDE)
@pytest.mark.parametrize("block", [None, (128, 128), (64, 128)])
def test_any_number_of_rows(
    features: int, k: int, rows: int, dtype: torch.dtype, block: Block | None
) -> None:
    gen = torch.Generator(device="cuda").manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=gen)

    x, bias = randn(rows, k).to(dtype), randn(features).to(dtype)
    weight = randn(features, k).to(FP8)
    block_rows, columns = block or (1, k)
    shape = -(-features // block_rows), -(-k // columns)
    scale = (torch.rand(shape, device="cuda", generator=gen) + 0.1) * k**-0.5
    meant = reference.dequantize_fp8(weight, scale, block).double()
    want = x.double() @ meant.T
    got = quantized.fp8_linear(x, weight, scale, bias, block=block)
    # Three bits of mantissa are left of x where there are more rows than a few.
    limit = LIMIT[dtype] if rows <= 16 else 0.04
    assert relative_error(got, want + bias.double()) < limit
    gate, up = want.chunk(2, -1)
    gated = quantized.fp8_gated_linear(x, weight, scale, None, block=block)
    assert isinstance(gated, torch.Tensor)
    assert relative_error(gated, F.silu(gate) * up) < 3 * limit
    exact = quantized.fp8_linear(x, weight, scale, bias, block=block, round_x=False)
    assert relative_error(exact, want + bias.double()) < LIMIT[dtype]
