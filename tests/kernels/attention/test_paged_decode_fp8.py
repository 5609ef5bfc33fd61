"""The decode kernel over caches in FP8.

The answer follows from what the cache holds: what is left is the rounding of weights to float16,
2^-11, and of the result to its own dtype.
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.attention.paged_cases import RAGGED, check, fp8_scales, make_case, run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("queries", [1, 4])
def test_fp8_cache(dim: int, dtype: torch.dtype, queries: int) -> None:
    lens = [max(n, queries) for n in RAGGED]
    check(make_case(lens, [queries] * len(lens), dim=dim, dtype=dtype, fp8=True))


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (12, 2), (14, 2), (32, 1), (64, 8)])
def test_fp8_head_groups(heads: int, kv_heads: int) -> None:
    case = make_case([300, 2049, 64], [1, 4, 8], heads=heads, kv_heads=kv_heads, fp8=True)
    check(case)


@pytest.mark.parametrize("block_size", [16, 32, 256])
def test_fp8_block_sizes_and_padding(block_size: int) -> None:
    case = make_case([300, 0, 2049, 64, 511], [1, 1, 2, 1, 4], block_size=block_size, fp8=True)
    check(case)


def test_fp8_window_soft_cap_and_alibi() -> None:
    lens = [5, 100, 101, 1024, 3000], [1, 4, 1, 4, 1]
    check(make_case(*lens, window=100, fp8=True), window=100)
    check(make_case(*lens, soft_cap=5.0, fp8=True), soft_cap=5.0)
    slopes = torch.logspace(-1, -4, 32, device="cuda")
    check(make_case(*lens, alibi_slopes=slopes, fp8=True), alibi_slopes=slopes)


def test_fp8_long_and_many_sequences() -> None:
    check(make_case([65_536], [1], fp8=True))
    gen = torch.Generator().manual_seed(1)
    lens = torch.randint(1, 700, (1500,), generator=gen).tolist()
    check(make_case(lens, [1] * len(lens), heads=8, kv_heads=2, fp8=True))


def test_fp8_large_queries() -> None:
    """Beyond what float16 holds they are cut off: no infinities, no NaN."""
    case = make_case([300], [1], fp8=True)
    case.q = (case.q * 1e5).bfloat16()
    assert run(case).isfinite().all()


def test_a_cache_in_fp8_needs_scales() -> None:
    case = make_case([64], [1], fp8=True)
    case.scales = {}
    with pytest.raises(ValueError, match="k_scale must be passed"):
        run(case)
    case = make_case([64], [1])
    case.scales = fp8_scales(8, "cuda")
    with pytest.raises(ValueError, match="k_scale must be passed"):
        run(case)
