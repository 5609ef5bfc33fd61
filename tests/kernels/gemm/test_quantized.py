"""GEMMs with quantized weights against float64 products with the dequantized ones."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda, ops, quantized, reference, rounded
from kernels.rounded import RoundedRows
from tests.kernels.interpreter import interpret

pytest.importorskip("triton")
from kernels.triton import quantize

pytestmark = pytest.mark.usefixtures("triton_products")

LIMIT = {torch.bfloat16: 4e-3, torch.float16: 6e-4}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def randn(*shape: int, seed: int, device: str = "cpu") -> torch.Tensor:
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device)


def draw_int4(
    features: int, k: int, group_size: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[quantized.Int4Matrix, torch.Tensor]:
    """The matrix, and its weights in float64, each rounded to ``dtype``."""
    generator = torch.Generator(device=device).manual_seed(k)
    num_groups = k // group_size

    def integers(width: int, end: int) -> torch.Tensor:
        drawn = torch.randint(0, end, (features, width), generator=generator, device=device)
        return drawn.to(torch.uint8)

    nibbles, zeros = integers(k, 16), integers(num_groups, 17)
    scales = (randn(features, num_groups, seed=5, device=device).abs() + 0.1).to(dtype)
    meant = nibbles.double() - zeros.double().repeat_interleave(group_size, 1)
    meant = (meant * scales.double().repeat_interleave(group_size, 1)).to(dtype)
    return quantized.Int4Matrix.of(nibbles, scales, zeros, None), meant.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_four_bits_are_read_as_they_were_packed(dtype: torch.dtype) -> None:
    matrix, meant = draw_int4(24, 96, 32, dtype)
    assert matrix.packed.shape == (24, 12)
    assert torch.equal(reference.dequantize_int4(matrix.packed, matrix.groups).double(), meant)


def test_rows_keep_their_direction_in_fp8() -> None:
    x = randn(5, 40, seed=1) * torch.tensor([[1e-6], [1], [300], [7], [0]])
    rounded, scale = reference.quantize_rows(x)
    assert rounded.dtype == torch.float8_e4m3fn
    assert scale.shape == (5, 1)
    # Three bits of mantissa, and near zero steps of 2**-9 of the scale.
    torch.testing.assert_close(rounded.float() * scale, x, rtol=2**-4, atol=0.6)
    assert rounded[:4].float().abs().amax(1).tolist() == [448] * 4
    assert not rounded[4].float().any()


@pytest.mark.parametrize("order", [None, torch.arange(96).flip(0)])
def test_the_product_of_many_rows(order: torch.Tensor | None) -> None:
    """Plain torch: what runs where no kernel serves."""
    plain, meant = draw_int4(16, 96, 32, torch.float32)
    matrix = quantized.Int4Matrix(plain.packed, plain.groups, order)
    x, bias = randn(20, 96, seed=1), randn(16, seed=2)
    want = (x if order is None else x[:, order]).double() @ meant.T + bias
    assert relative_error(quantized.int4_linear(x, matrix, bias), want) < 1e-6
    gate, up = want.chunk(2, -1)
    assert relative_error(quantized.int4_gated_linear(x, matrix, bias), F.silu(gate) * up) < 1e-5


def check_triton(device: str) -> None:
    for shape in ((3, 40), (2, 5000)):
        x = randn(*shape, seed=3, device=device)
        got, want = quantize.quantize_rows(x), reference.quantize_rows(x)
        torch.testing.assert_close(got[1], want[1])
        # The two may divide a little differently: a value between two steps goes either way.
        # Triton's interpreter, moreover, loses the carry of a mantissa that rounds up to 2.
        equal = (got[0].float() == want[0].float()).float().mean()
        assert equal > (0.999 if device == "cuda" else 0.95)
    for features, k, group_size in ((5, 64, 32), (3, 4608, 512)):
        matrix, meant = draw_int4(features, k, group_size, torch.float32, device)
        assert torch.equal(quantize.dequantize_int4(matrix.packed, matrix.groups).double(), meant)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run here")
def test_interpreted_the_kernels_equal_the_reference() -> None:
    interpret("from tests.kernels.gemm.test_quantized import *; check_triton('cpu')")


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_equal_the_reference() -> None:
    check_triton("cuda")


SHAPES = [(16, 128), (48, 384), (4096, 4096), (28672, 4096), (4096, 14336)]
"""(features, k)"""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 7, 9, 16])
@pytest.mark.parametrize(("features", "k"), SHAPES)
def test_few_rows_in_fp8(features: int, k: int, tokens: int, dtype: torch.dtype) -> None:
    x = randn(tokens, k, seed=1, device="cuda").to(dtype)
    bias = randn(features, seed=3, device="cuda").to(dtype)
    weight, scale = ops.quantize_rows(randn(features, k, seed=2, device="cuda"))
    want = x.double() @ (weight.double() * scale).T + bias.double()
    assert relative_error(quantized.fp8_linear(x, weight, scale, bias), want) < LIMIT[dtype]
    small = scale * k**-0.5
    gate, up = (x.double() @ (weight.double() * small).T).chunk(2, -1)
    out = quantized.fp8_gated_linear(x, weight, small, None)
    assert isinstance(out, torch.Tensor)
    assert relative_error(out, F.silu(gate) * up) < 3 * LIMIT[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_fp8_number_is_read_exactly(dtype: torch.dtype) -> None:
    """One of them times one, in each of the 256 columns."""
    numbers = torch.arange(256, device="cuda").to(torch.uint8).view(torch.float8_e4m3fn)
    numbers = torch.where(numbers.float().isnan(), 0.0, numbers.float()).to(torch.float8_e4m3fn)
    weight = numbers.repeat(16, 1)
    one = torch.ones(16, 1, device="cuda")
    for start in range(0, 256, 16):
        x = torch.zeros(16, 256, device="cuda", dtype=dtype)
        x[torch.arange(16), torch.arange(start, start + 16)] = 1
        got = quantized.fp8_linear(x, weight, one, None)
        want = numbers[start : start + 16].to(dtype)
        assert torch.equal(got, want[:, None].expand(16, 16))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("round_x", [True, False])
@pytest.mark.parametrize("tokens", [17, 64, 700])
def test_many_rows_in_fp8(tokens: int, round_x: bool, dtype: torch.dtype) -> None:
    x = randn(tokens, 1024, seed=1, device="cuda").to(dtype)
    bias = randn(2048, seed=3, device="cuda").to(dtype)
    weight, scale = ops.quantize_rows(randn(2048, 1024, seed=2, device="cuda"))
    x_meant = x.double()
    if round_x:
        rounded, x_scale = reference.quantize_rows(x)
        x_meant = rounded.double() * x_scale
    want = x_meant @ (weight.double() * scale).T + bias.double()
    got = quantized.fp8_linear(x, weight, scale, bias, round_x=round_x)
    assert relative_error(got, want) < 6e-3


@pytest.mark.parametrize("tiled", [False, True])
def test_few_rows_are_never_rounded(tiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products that read x as it is are faster for them."""
    monkeypatch.setattr(cuda, "available", lambda: True)
    monkeypatch.setattr(quantized, "_has_tiled", lambda device: tiled)
    monkeypatch.setattr(quantized, "_multiplies_fp8", lambda device: True)
    weight = torch.empty(64, 256, dtype=torch.float8_e4m3fn)
    rounding = [rows for rows in range(1, 200) if quantized.rounds(rows, weight, torch.bfloat16)]
    assert rounding == list(range(17 if tiled else 65, 200))
    odd = torch.empty(64, 264, dtype=torch.float8_e4m3fn)
    assert not any(quantized.rounds(rows, odd, torch.bfloat16) for rows in (1, 17, 64, 200))


def test_without_kernels_of_our_own_nothing_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They could not be built, though the GPU multiplies in FP8."""
    monkeypatch.setattr(cuda, "available", lambda: False)
    monkeypatch.setattr(quantized, "_multiplies_fp8", lambda device: True)
    x = randn(80, 256, seed=1).to(torch.bfloat16)
    weight, scale = reference.quantize_rows(randn(64, 256, seed=2))
    assert not quantized.rounds(80, weight, x.dtype)
    want = x.double() @ (weight.double() * scale).T
    assert relative_error(quantized.fp8_linear(x, weight, scale, None), want) < 0.04
    assert quantized.fp8_gated_linear(x, weight, scale, None, round_out=False).shape == (80, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [40, 300, 700])
def test_what_is_rounded_already_gives_the_same(tokens: int, dtype: torch.dtype) -> None:
    x = randn(tokens, 1024, seed=1, device="cuda").to(dtype)
    weight, scale = ops.quantize_rows(randn(2048, 1024, seed=2, device="cuda") * 0.03)
    assert quantized.rounds(tokens, weight, dtype)
    given = rounded.quantize(x)
    want = quantized.fp8_linear(x, weight, scale, None)
    assert torch.equal(quantized.fp8_linear(given, weight, scale, None), want)
    gated = quantized.fp8_gated_linear(given, weight, scale, None)
    assert isinstance(gated, torch.Tensor)
    out = quantized.fp8_gated_linear(given, weight, scale, None, round_out=True)
    if isinstance(out, RoundedRows):
        assert relative_error(out.values.float() * out.scale, gated.double()) < 0.04
    else:
        assert torch.equal(out, gated)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 7, 9, 16, 27, 40, 300])
@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
@pytest.mark.parametrize(("features", "k"), SHAPES)
def test_int4(features: int, k: int, group_size: int, tokens: int, dtype: torch.dtype) -> None:
    group_size = k if group_size == -1 else group_size
    matrix, meant = draw_int4(features, k, group_size, dtype, "cuda")
    x = (randn(tokens, k, seed=1, device="cuda") * k**-0.5).to(dtype)
    bias = randn(features, seed=3, device="cuda").to(dtype)
    want = x.double() @ meant.T + bias.double()
    assert relative_error(quantized.int4_linear(x, matrix, bias), want) < LIMIT[dtype]
    gate, up = want.chunk(2, -1)
    out = quantized.int4_gated_linear(x, matrix, bias)
    assert relative_error(out, F.silu(gate) * up) < 3 * LIMIT[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("features", [4096, 6144, 28672])
def test_a_row_does_not_depend_on_its_neighbours(features: int) -> None:
    """Among as many as one kernel serves: one row, up to 8, up to 16. Each sums in its own order.

    features: two, three and more CTAs on an SM, which decide how a kernel is launched.
    """
    x = randn(16, 4096, seed=1, device="cuda").to(torch.bfloat16)
    weight, scale = ops.quantize_rows(randn(features, 4096, seed=2, device="cuda"))
    matrix, _ = draw_int4(features, 4096, 128, torch.bfloat16, "cuda")
    products = (
        lambda x: quantized.fp8_linear(x, weight, scale, None),
        lambda x: quantized.int4_linear(x, matrix, None),
    )
    for product in products:
        few, more = product(x[:8]), product(x)
        for rows in (2, 3, 5):
            assert torch.equal(product(x[:rows]), few[:rows])
        for rows in (9, 11):
            assert torch.equal(product(x[:rows]), more[:rows])
