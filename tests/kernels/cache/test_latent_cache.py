"""What latent attention stores: the reference by hand, the CUDA kernel against the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels import cuda, reference

EPS = 1e-6
ROTARY, RANK, HEADS, BLOCK = 8, 32, 3, 4


@dataclass
class Case:
    arguments: tuple[torch.Tensor, ...]
    options: dict[str, Any]

    @property
    def q(self) -> torch.Tensor:
        return self.arguments[0]

    @property
    def cache(self) -> torch.Tensor:
        return self.arguments[4]


def draw(
    device: str,
    dtype: torch.dtype,
    *,
    tokens: int = 5,
    heads: int = HEADS,
    rotary: int = ROTARY,
    rank: int = RANK,
    interleaved: bool,
    fp8: bool = False,
) -> Case:
    generator = torch.Generator().manual_seed(tokens)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    num_blocks = tokens // BLOCK + 2
    slots = torch.randperm(num_blocks * BLOCK, generator=generator)[:tokens]
    slots[tokens // 2] = -1 if tokens > 1 else slots[0]
    cache = torch.full((num_blocks, BLOCK, 1, rotary + rank), 7.0).to(device, dtype)
    arguments = (
        torch.full((tokens, heads, rotary + rank), 9.0).to(device, dtype),
        some(tokens, heads, 16 + rotary)[..., 16:],
        some(tokens, rank + rotary),
        some(rank),
        cache.to(torch.float8_e4m3fn) if fp8 else cache,
        torch.randn(50, rotary, generator=generator).to(device),
        torch.randint(0, 50, (tokens,), generator=generator).to(device),
        slots.to(device),
    )
    scale = torch.tensor([0.03]).to(device) if fp8 else None
    return Case(arguments, {"eps": EPS, "interleaved": interleaved, "scale": scale})


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_reference_rotates_norms_and_stores(*, interleaved: bool) -> None:
    case = draw("cpu", torch.float32, interleaved=interleaved)
    q, q_turned, kv, norm, cache, cos_sin, positions, slots = case.arguments
    reference.store_latents(*case.arguments, **case.options)
    assert (q[..., ROTARY:] == 9).all()
    half = ROTARY // 2
    rows = cache.view(-1, ROTARY + RANK)
    for token, slot in enumerate(slots.tolist()):
        cos, sin = cos_sin[positions[token]].split(half)
        turned = [(q_turned[token, head], q[token, head]) for head in range(HEADS)]
        if slot >= 0:
            turned.append((kv[token, RANK:], rows[slot]))
            latent = kv[token, :RANK]
            normed = latent * (latent.square().mean() + EPS).rsqrt() * norm
            torch.testing.assert_close(rows[slot, ROTARY:], normed)
        for source, made in turned:
            a, b = (source[0::2], source[1::2]) if interleaved else source.split(half)
            torch.testing.assert_close(made[:half], a * cos - b * sin)
            torch.testing.assert_close(made[half:ROTARY], b * cos + a * sin)
    assert (cache == 7).all(-1).sum() == cache.shape[0] * BLOCK - (slots >= 0).sum()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "rotary", "rank"),
    [(1, 16, 64, 512), (300, 16, 64, 512), (9, 4, 16, 48), (5, 3, 8, 32)],
)
def test_the_kernel_equals_the_reference(
    tokens: int,
    heads: int,
    rotary: int,
    rank: int,
    dtype: torch.dtype,
    *,
    interleaved: bool,
    fp8: bool,
) -> None:
    cuda.load()
    sizes = {"tokens": tokens, "heads": heads, "rotary": rotary, "rank": rank}
    got, want = (draw("cuda", dtype, interleaved=interleaved, fp8=fp8, **sizes) for _ in range(2))
    cuda.native.store_latents(*got.arguments, **got.options)
    reference.store_latents(*want.arguments, **want.options)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.q, want.q, rtol=tolerance, atol=tolerance)
    # In FP8 a rounding may fall the other way: one step of an eighth.
    rtol, atol = (0.15, 0.01) if fp8 else (tolerance, tolerance)
    torch.testing.assert_close(got.cache.float(), want.cache.float(), rtol=rtol, atol=atol)
