"""The ops of a layer, every CPU implementation against its formula in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels import cpu, reference

IMPLEMENTATIONS = [
    reference,
    pytest.param(
        cpu, marks=pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")
    ),
]
Draw = Callable[..., torch.Tensor]


@pytest.fixture
def randn() -> Draw:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator)


@pytest.mark.parametrize("ops", IMPLEMENTATIONS)
@pytest.mark.parametrize(("rows", "width"), [(1, 24), (5, 7), (33, 48), (700, 64)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm(ops: object, randn: Draw, rows: int, width: int, with_residual: bool) -> None:
    x, weight = randn(rows, width) * 3, randn(width)
    residual = randn(rows, width) if with_residual else None
    total = x if residual is None else x + residual
    total64 = total.double()
    mean_square = total64.square().mean(-1, keepdim=True)
    expected = total64 / (mean_square + 1e-5).sqrt() * weight.double()
    out = ops.rms_norm(x, weight, 1e-5, residual)  # type: ignore[attr-defined]
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    if residual is not None:
        assert torch.equal(residual, total)


@pytest.mark.parametrize("ops", IMPLEMENTATIONS)
@pytest.mark.parametrize(("rows", "width"), [(1, 6), (9, 33), (600, 40)])
def test_silu_mul_takes_the_gate_first(ops: object, randn: Draw, rows: int, width: int) -> None:
    gate, up = randn(rows, width) * 8, randn(rows, width)
    gate[0, :4] = torch.tensor([0.0, 200.0, -200.0, -1e-6])
    gate64 = gate.double()
    expected = gate64 / (1 + (-gate64).exp()) * up.double()
    out = ops.silu_mul(torch.cat((gate, up), -1))  # type: ignore[attr-defined]
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ops", IMPLEMENTATIONS)
@pytest.mark.parametrize("heads", [(2, 1), (6, 2), (4, 4)])
@pytest.mark.parametrize("head_dim", [6, 16, 48])
def test_rope_and_cache(ops: object, randn: Draw, heads: tuple[int, int], head_dim: int) -> None:
    """q in place, k and v to their slots; slot -1 and all other slots are left alone."""
    num_heads, num_kv_heads = heads
    half = head_dim // 2
    fused = randn(4, num_heads + 2 * num_kv_heads, head_dim)
    before = fused.clone()
    q, k, v = fused.split((num_heads, num_kv_heads, num_kv_heads), 1)
    angles = torch.rand(20, half, generator=torch.Generator().manual_seed(1)).double() * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).float()
    positions, slots = torch.tensor([3, 19, 0, 7]), torch.tensor([11, -1, 0, 6])
    k_cache, v_cache = torch.full((2, 3, 4, num_kv_heads, head_dim), 7.0).unbind()

    ops.rope_and_cache(  # type: ignore[attr-defined]
        q, k, v, k_cache, v_cache, cos_sin, positions, slots
    )
    turn = torch.polar(torch.ones(4, 1, half).double(), angles[positions].unsqueeze(1))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
        return torch.cat((turned.real, turned.imag), -1).float()

    torch.testing.assert_close(q, rotated(before[:, :num_heads]), rtol=1e-5, atol=1e-6)
    keys = rotated(before[:, num_heads : num_heads + num_kv_heads])
    written, from_tokens = [11, 0, 6], [0, 2, 3]
    flat_k, flat_v = (cache.view(12, num_kv_heads, head_dim) for cache in (k_cache, v_cache))
    torch.testing.assert_close(flat_k[written], keys[from_tokens], rtol=1e-5, atol=1e-6)
    assert torch.equal(flat_v[written], before[from_tokens, -num_kv_heads:])
    untouched = [slot for slot in range(12) if slot not in written]
    assert (flat_k[untouched] == 7).all()
    assert (flat_v[untouched] == 7).all()


@pytest.mark.parametrize("ops", IMPLEMENTATIONS)
def test_rope_may_turn_a_part_after_a_norm(ops: object, randn: Draw) -> None:
    fused = randn(3, 4, 16)
    before = fused.clone()
    q_norm, k_norm = randn(16), randn(16)
    angles = randn(5, 3)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    positions, slots = torch.tensor([4, 0, 2]), torch.tensor([2, -1, 0])
    k_cache, v_cache = torch.zeros(2, 1, 4, 1, 16).unbind()
    ops.rope_and_cache(  # type: ignore[attr-defined]
        *fused.split((2, 1, 1), 1),
        k_cache,
        v_cache,
        cos_sin,
        positions,
        slots,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=1e-3,
    )

    def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x * (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * weight
        cos, sin = angles[positions, None].cos(), angles[positions, None].sin()
        a, b = x[..., :3], x[..., 3:6]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 6:]), -1)

    torch.testing.assert_close(fused[:, :2], expected(before[:, :2], q_norm))
    keys = expected(before[:, 2:3], k_norm)
    torch.testing.assert_close(k_cache[0, [2, 0]], keys[[0, 2]])
    assert torch.equal(v_cache[0, [2, 0]], before[[0, 2], 3:])
