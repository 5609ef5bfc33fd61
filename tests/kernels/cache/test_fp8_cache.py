"""Caches in FP8 on a CPU: what is written, what is read, how far it is from the real numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import cpu, reference

FP8 = torch.float8_e4m3fn
IMPLEMENTATIONS = [
    reference,
    pytest.param(
        cpu, marks=pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")
    ),
]


def store(ops: object, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The bytes of values [tokens, heads, dim] that went through ``rope_and_cache`` as they are."""
    tokens, heads, dim = values.shape
    caches = torch.zeros(2, tokens, 1, heads, dim, dtype=FP8)
    fused = torch.cat((torch.zeros(tokens, heads, dim), values, values), 1)
    unturned = torch.cat((torch.ones(1, dim // 2), torch.zeros(1, dim // 2)), 1)
    ops.rope_and_cache(  # type: ignore[attr-defined]
        *fused.split(heads, 1),
        *caches,
        unturned,
        torch.zeros(tokens, dtype=torch.int64),
        torch.arange(tokens),
        k_scale=scale,
        v_scale=scale,
    )
    k, v = caches.view(torch.uint8).flatten(1, 2).unbind()
    assert torch.equal(k & 0x7F, v & 0x7F), "an unturned key is stored like a value"
    return v


@pytest.mark.parametrize("ops", IMPLEMENTATIONS)
def test_every_rounding_of_the_format(ops: object) -> None:
    """All its numbers, all halfway between two of them, and their neighbours; beyond its ends."""
    numbers = torch.arange(0x7F, dtype=torch.uint8).view(FP8).double()
    halfway = (numbers[1:] + numbers[:-1]) / 2
    exact = torch.cat((numbers, halfway, torch.tensor([449.0, 464.0, 1e30]).double()))
    close = [exact.float().nextafter(torch.tensor(to)) for to in (-math.inf, math.inf)]
    values = torch.cat((exact.float(), *close))
    values = torch.cat((values, -values))
    values = torch.nn.functional.pad(values, (0, -len(values) % 8)).view(-1, 1, 8)
    one = torch.ones(1)
    stored = store(ops, values, one)
    assert torch.equal(stored, reference.quantize_heads(values, one).view(torch.uint8))
    near = (stored.view(FP8).double() - values.double().clamp(-448, 448)).abs()
    everything = torch.cat((numbers, -numbers))
    best = (values.double().clamp(-448, 448).unsqueeze(-1) - everything).abs().amin(-1)
    assert torch.equal(near, best), "not the nearest"


@pytest.mark.parametrize("ops", IMPLEMENTATIONS)
def test_no_number_stays_no_number(ops: object) -> None:
    values = torch.full((1, 1, 8), math.nan)
    assert store(ops, values, torch.ones(1)).view(FP8).float().isnan().all()


@pytest.mark.parametrize("ops", IMPLEMENTATIONS)
def test_each_head_has_its_scale(ops: object) -> None:
    gen = torch.Generator().manual_seed(0)
    values = torch.randn(30, 3, 16, generator=gen)
    scale = torch.tensor([0.5, 0.02, 0.0031])
    stored = store(ops, values, scale)
    assert torch.equal(stored, reference.quantize_heads(values, scale).view(torch.uint8))


@pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")
def test_every_byte_is_read_as_it_should() -> None:
    """One key is all that a query sees: the output is the value."""
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    codes = torch.cat((codes, codes[:2])).view(-1, 1, 1, 16)
    v_cache, scale = codes.view(FP8), torch.tensor([0.37])
    tokens = len(codes)
    sequences = cpu.AttentionSequences(
        torch.arange(tokens, dtype=torch.int32).unsqueeze(1),
        torch.arange(tokens).numpy(),
        torch.arange(tokens).numpy(),
        torch.ones(tokens, dtype=torch.int64).numpy(),
        torch.ones(tokens, dtype=torch.int64).numpy(),
    )
    out = torch.full((tokens, 1, 16), math.nan)
    k_cache = torch.zeros_like(codes).view(FP8)
    cpu.paged_attention(
        out,
        torch.zeros(tokens, 1, 16),
        k_cache,
        v_cache,
        sequences.struct(),
        1.0,
        k_scale=scale,
        v_scale=scale,
    )
    assert torch.equal(out, reference.dequantize_heads(v_cache, scale)[:, 0])


@given(
    seed=st.integers(0, 1000),
    length=st.integers(1, 60),
    spread=st.floats(0.1, 30),
)
def test_attention_stays_within_the_bound_of_the_format(
    seed: int, length: int, spread: float
) -> None:
    """Half a step of three bits of mantissa is 2^-4 of a number. A key that far off moves a score
    by at most 2^-4 |q| |k| scale, so weights by a factor of at most e to twice that."""
    gen = torch.Generator().manual_seed(seed)
    heads, dim, scale = 2, 16, 0.25
    q = torch.randn(1, heads, dim, generator=gen)
    k, v = torch.randn(2, length, 1, heads, dim, generator=gen) * spread
    k_scale, v_scale = (x.abs().amax((0, 1, 3)) / 448 for x in (k, v))
    stored = reference.quantize_heads(k, k_scale), reference.quantize_heads(v, v_scale)
    table = torch.arange(length, dtype=torch.int32).unsqueeze(0)
    step = table, torch.tensor([length]), torch.tensor([0, 1])
    exact = reference.paged_attention(q, k, v, *step, scale=scale)
    out = reference.paged_attention(
        q, *stored, *step, scale=scale, k_scale=k_scale, v_scale=v_scale
    )
    # Below the smallest normal number, 2^-6, steps do not shrink any more.
    moved = 2.0**-4 * k.abs() + 2.0**-10 * k_scale.view(-1, 1)
    score = (q.abs() * moved.amax((0, 1))).sum(-1) * scale
    largest = v.abs().amax((0, 1, 3))
    weights = 2 * largest * (2 * score).expm1()
    values = 2.0**-4 * largest + 2.0**-10 * v_scale
    assert ((out - exact).abs() <= (weights[0] + values).unsqueeze(-1) + 1e-5).all()
