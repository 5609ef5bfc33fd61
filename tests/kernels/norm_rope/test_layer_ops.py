"""The row operations against float64, with outputs poisoned first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LIMIT = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=gen, device="cuda").to(dtype)


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    error = (got.double() - want).norm() / want.norm()
    assert error < LIMIT[got.dtype], f"relative error {error:.2e}"


def rms_norm64(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 288), (7, 4096), (300, 4104), (2, 16384)])
def test_rms_norm(rows: int, width: int, dtype: torch.dtype) -> None:
    from kernels import cuda

    cuda.load()
    x, weight = randn(rows, width, dtype=dtype), randn(width, dtype=dtype, seed=1)
    assert_close(cuda.native.rms_norm(x, weight, 1e-5), rms_norm64(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_adds_the_residual_in_place(dtype: torch.dtype) -> None:
    from kernels import cuda

    cuda.load()
    x, residual = randn(5, 4096, dtype=dtype), randn(5, 4096, dtype=dtype, seed=1)
    weight = randn(4096, dtype=dtype, seed=2)
    total = residual + x
    out = cuda.native.rms_norm(x, weight, 1e-5, residual)
    torch.testing.assert_close(residual, total, rtol=0, atol=0)
    assert_close(out, rms_norm64(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [64, 3840, 12288])
def test_rms_norm_of_a_norm_and_with_wide_weights(
    width: int, wide: bool, dtype: torch.dtype
) -> None:
    from kernels import cuda, reference

    cuda.load()
    kind = torch.float32 if wide else dtype
    x, residual = randn(5, width, dtype=dtype), randn(5, width, dtype=dtype, seed=1)
    weight, inner = randn(width, dtype=kind, seed=2), randn(width, dtype=kind, seed=3)
    assert_close(cuda.native.rms_norm(x, weight, 1e-5), rms_norm64(x, weight, 1e-5))
    expected_sum = residual.clone()
    expected = reference.rms_norm(x, weight, 1e-5, expected_sum, inner)
    out = cuda.native.rms_norm(x, weight, 1e-5, residual, inner)
    assert_close(residual, expected_sum)
    assert_close(out, expected)


def test_rms_norm_of_strided_rows() -> None:
    from kernels import cuda

    cuda.load()
    x = randn(6, 1024, dtype=torch.bfloat16)[:, :512]
    weight = randn(512, dtype=torch.bfloat16, seed=1)
    assert_close(cuda.native.rms_norm(x, weight, 1e-5), rms_norm64(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (5, 768), (3000, 264), (1000, 14336)])
def test_silu_mul(rows: int, width: int, dtype: torch.dtype) -> None:
    from kernels import cuda

    cuda.load()
    x = randn(rows, 2 * width, dtype=dtype)
    gate, up = x.double().chunk(2, -1)
    assert_close(cuda.native.silu_mul(x), torch.nn.functional.silu(gate) * up)
    gelu = torch.nn.functional.gelu(gate, approximate="tanh")
    assert_close(cuda.native.gelu_tanh_mul(x), gelu * up)


def test_gelu_of_what_is_far_from_0_is_finite() -> None:
    from kernels import cuda

    cuda.load()
    gate = torch.tensor([-1e30, -1e4, -20, 0, 20, 1e4, 1e30, 5], device="cuda")
    out = cuda.native.gelu_tanh_mul(torch.cat((gate, torch.ones_like(gate))).unsqueeze(0))
    torch.testing.assert_close(out[0], torch.nn.functional.gelu(gate, approximate="tanh"))


def rope64(x: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    rotary = cos_sin.shape[1]
    cos, sin = cos_sin[positions].double()[:, None].chunk(2, -1)
    a, b = x.double()[..., :rotary].chunk(2, -1)
    rest = x.double()[..., rotary:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "rotary"), [(32, 32), (64, 64), (96, 96), (128, 64), (256, 256)])
@pytest.mark.parametrize("normed", [None, "own", "wide"])
def test_rope_and_cache(dim: int, rotary: int, normed: str | None, dtype: torch.dtype) -> None:
    from kernels import cuda

    cuda.load()
    tokens, heads, kv_heads, blocks, block_size = 9, 6, 2, 4, 16
    fused = randn(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, v = (
        part.unflatten(-1, (-1, dim))
        for part in fused.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    )
    q_in, k_in = q.clone(), k.clone()
    k_cache = torch.full((blocks, block_size, kv_heads, dim), 7.0, dtype=dtype, device="cuda")
    v_cache = k_cache.clone()
    cos_sin = randn(500, rotary, dtype=torch.float32, seed=3)
    positions = torch.randint(0, 500, (tokens,), device="cuda")
    slots = torch.randperm(blocks * block_size, device="cuda")[:tokens]
    slots[4] = -1
    norms: dict[str, Any] = {}
    if normed:
        kind = torch.float32 if normed == "wide" else dtype
        norms = {"q_norm": randn(dim, dtype=kind, seed=4), "k_norm": randn(dim, dtype=kind)}
        q_in, k_in = (
            rms_norm64(x, w, 1e-6).to(dtype)
            for x, w in ((q_in, norms["q_norm"]), (k_in, norms["k_norm"]))
        )
    cuda.native.rope_and_cache(q, k, v, k_cache, v_cache, cos_sin, positions, slots, **norms)

    assert_close(q, rope64(q_in, cos_sin, positions))
    live = slots >= 0
    written = k_cache.view(-1, kv_heads, dim)[slots[live]]
    assert_close(written, rope64(k_in, cos_sin, positions)[live])
    torch.testing.assert_close(v_cache.view(-1, kv_heads, dim)[slots[live]], v[live])
    untouched = torch.ones(blocks * block_size, dtype=torch.bool, device="cuda")
    untouched[slots[live]] = False
    assert (k_cache.view(-1, kv_heads, dim)[untouched] == 7).all()
    assert (v_cache.view(-1, kv_heads, dim)[untouched] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "rotary"), [(32, 32), (64, 64), (96, 96), (128, 64), (576, 64)])
def test_rope_and_cache_in_fp8(dim: int, rotary: int, dtype: torch.dtype) -> None:
    """As the reference, but for numbers so close to halfway between two that either may be."""
    from kernels import cuda, reference

    cuda.load()
    tokens, heads, kv_heads, blocks, block_size = 9, 6, 2, 4, 16
    fused = randn(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype) * 3
    cos_sin = randn(500, rotary, dtype=torch.float32, seed=3)
    positions = torch.randint(0, 500, (tokens,), device="cuda")
    slots = torch.randperm(blocks * block_size, device="cuda")[:tokens]
    slots[4] = -1
    k_scale = torch.tensor([0.013, 0.2], device="cuda")
    scales = {"k_scale": k_scale, "v_scale": k_scale.flip(0) * 0.001}
    stored = []
    for ops in (cuda.native, reference):
        parts = fused.clone().split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
        q, k, v = (part.unflatten(-1, (-1, dim)) for part in parts)
        shape = (blocks, block_size, kv_heads, dim)
        k_cache = torch.full(shape, 7.0, device="cuda").to(torch.float8_e4m3fn)
        v_cache = k_cache.clone()
        ops.rope_and_cache(q, k, v, k_cache, v_cache, cos_sin, positions, slots, eps=1e-6, **scales)
        stored.append(torch.cat((k_cache.flatten().float(), v_cache.flatten().float())))
    got, want = stored
    assert (got == want).float().mean() > 0.98
    assert ((got - want).abs() <= want.abs() / 7).all(), "more than one step apart"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
def test_blocks_out_of_fp8(dim: int, dtype: torch.dtype) -> None:
    from kernels import cuda, reference

    cuda.load()
    codes = torch.randint(0, 0x7F, (2, 40, 16, 3, dim), device="cuda", dtype=torch.uint8)
    codes |= torch.randint(0, 2, codes.shape, device="cuda", dtype=torch.uint8) << 7
    k_cache, v_cache = codes.view(torch.float8_e4m3fn)
    k_scale = torch.tensor([0.5, 2.0**-9, 0.0137], device="cuda")
    v_scale = torch.tensor([0.25, 0.0071, 1.0], device="cuda")
    blocks = torch.randperm(40, device="cuda")[:23].to(torch.int32)
    outs = torch.full((2, 30, 16, 3, dim), 7.0, device="cuda", dtype=dtype)
    k_out, v_out = outs.unbind()
    cuda.native.dequantize_blocks(k_out, v_out, k_cache, v_cache, k_scale, v_scale, blocks)
    for out, cache, scale in zip(outs, (k_cache, v_cache), (k_scale, v_scale), strict=True):
        chosen = cache.view(torch.uint8)[blocks.long()].view(torch.float8_e4m3fn)
        assert torch.equal(out[:23], reference.dequantize_heads(chosen, scale).to(dtype))
        assert (out[23:] == 7).all()


def test_wrong_arguments_are_refused_by_name() -> None:
    from kernels import cuda

    cuda.load()
    x = randn(2, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="weight must be"):
        cuda.native.rms_norm(x, randn(64, dtype=torch.float16), 1e-5)
    with pytest.raises(ValueError, match="inner must be like weight"):
        cuda.native.rms_norm(x, x[0], 1e-5, None, randn(64, dtype=torch.float32))
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        cuda.native.rms_norm(x[:, :6].contiguous(), x[0, :6].contiguous(), 1e-5)
    with pytest.raises(ValueError, match="must be float32, float16 or bfloat16"):
        cuda.native.silu_mul(x.double())
