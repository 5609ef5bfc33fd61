"""The decode kernel where it rotates and stores the new keys itself."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.attention.paged_cases import (
    RAGGED,
    NewKeys,
    check,
    check_beside,
    make_case,
    scheduled,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("queries", [1, 4])
def test_new_keys(dim: int, dtype: torch.dtype, queries: int) -> None:
    lens = [max(n, queries) for n in RAGGED]
    case = make_case(lens, [queries] * len(lens), dim=dim, dtype=dtype)
    new = NewKeys.of(case)
    check(case, **new.arguments)
    new.check_stored(case)


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (12, 2), (14, 2), (32, 1), (64, 8)])
def test_new_keys_of_head_groups_and_padding(heads: int, kv_heads: int) -> None:
    lens = [300, 0, 2049, 64, 511]
    case = make_case(lens, [1, 2, 4, 8, 3], heads=heads, kv_heads=kv_heads, block_size=32)
    new = NewKeys.of(case)
    check(case, **new.arguments)
    new.check_stored(case)


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (12, 2), (14, 2), (32, 1), (64, 8)])
def test_clusters_take_new_keys(heads: int, kv_heads: int) -> None:
    case = make_case([300, 280, 0, 320], [1] * 4, heads=heads, kv_heads=kv_heads)
    new = NewKeys.of(case)
    check(case, clusters=True, **new.arguments)
    new.check_stored(case)


def test_new_keys_under_a_window() -> None:
    case = make_case([5, 100, 101, 1024, 3000], [1, 4, 1, 4, 1], window=100)
    new = NewKeys.of(case, window=100)
    check(case, window=100, **new.arguments)
    new.check_stored(case)


def test_new_keys_begin_before_their_projection_is_made() -> None:
    """With ``wait_first=False`` it runs beside the kernel that makes queries, keys and values."""
    from kernels import cuda

    lens = [1, 16, 17, 300, 2049, *range(500, 511)]
    case = make_case(lens, [1] * len(lens))
    batch = len(lens)
    new = NewKeys.of(case)
    made = torch.cat((case.q, new.arguments["new_k"], new.arguments["new_v"]), 1).view(batch, -1)
    eye = torch.eye(made.shape[1], device="cuda", dtype=torch.bfloat16)
    workspace = scheduled(case)
    for _ in range(20):
        for cache in (case.k_cache, case.v_cache):
            cache.view(-1, 8, 128)[new.slots] = float("nan")
        fused = cuda.native.skinny_linear(made, eye).view(batch, 48, 128)
        q, new_k, new_v = fused.split_with_sizes((32, 8, 8), 1)
        check_beside(
            *(case, q, workspace), new_k=new_k, new_v=new_v, cos_sin=new.arguments["cos_sin"]
        )
        new.check_stored(case)
