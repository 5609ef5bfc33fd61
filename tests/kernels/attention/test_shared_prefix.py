"""Decode with keys that sequences share, read once for all of them, against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.runner.graphs.shared_prefix import Layout, find_groups
from tests.kernels.attention.paged_cases import attention_float64

if TYPE_CHECKING:
    from kernels.cuda import SharedPrefixes

pytestmark = pytest.mark.gpu
BLOCK_SIZE = 16


@dataclass
class Batch:
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    table: npt.NDArray[np.int32]
    lens: list[int]
    expected: torch.Tensor


def make_batch(
    groups: list[tuple[int, list[int]]], heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> Batch:
    """Whatever no sequence owns is NaN in the cache and nonsense in the block table."""
    gen = torch.Generator(device="cuda").manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, device="cuda").to(dtype)

    lens = [shared + rest for shared, rests in groups for rest in rests]
    num_blocks = sum(-(-n // BLOCK_SIZE) for n in lens) + 9
    shape = (num_blocks, BLOCK_SIZE, kv_heads, dim)
    k_cache = torch.full(shape, float("nan"), device="cuda", dtype=dtype)
    v_cache = k_cache.clone()
    free = iter(torch.randperm(num_blocks, generator=gen, device="cuda").tolist())
    table = np.full((len(lens), max(-(-n // BLOCK_SIZE) for n in lens)), 2**30, np.int32)
    q = randn(len(lens), heads, dim)
    expected = torch.zeros(len(lens), heads, dim, dtype=torch.float64, device="cuda")

    def store(tokens: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        blocks = [next(free) for _ in range(-(-tokens // BLOCK_SIZE))]
        k, v = randn(tokens, kv_heads, dim), randn(tokens, kv_heads, dim)
        slots = torch.arange(tokens, device="cuda")
        ids = torch.tensor(blocks, device="cuda", dtype=torch.int64)
        where = ids[slots // BLOCK_SIZE], slots % BLOCK_SIZE
        k_cache[where], v_cache[where] = k, v
        return k, v, blocks

    row = 0
    for shared, rests in groups:
        k, v, common = store(shared)
        for rest in rests:
            own_k, own_v, own = store(rest)
            table[row, : len(common) + len(own)] = common + own
            expected[row] = attention_float64(
                q[row : row + 1], torch.cat((k, own_k)), torch.cat((v, own_v)), 0, 0.0, None
            )[0]
            row += 1
    return Batch(q, k_cache, v_cache, table, lens, expected)


def shared_work(batch: Batch, size: int, max_splits: int) -> SharedPrefixes:
    """For a batch padded to ``size``; partial results start as NaN."""
    from kernels import cuda

    (_, heads, dim), kv_heads = batch.q.shape, batch.k_cache.shape[2]
    groups = find_groups(batch.table, (np.array(batch.lens) - 1) // BLOCK_SIZE, BLOCK_SIZE)
    layout = Layout(size, max(512, size), max_splits)
    work = np.zeros(layout.size, np.int32)
    layout.fill(work, groups, cuda.PREFILL_ROWS // (heads // kv_heads), kv_heads, 132)
    sent = torch.from_numpy(work).cuda()
    tiles, tile_splits, skipped, splits, members, num_tiles = (sent[p] for p in layout.parts())
    return cuda.SharedPrefixes(
        skipped=skipped,
        splits=splits,
        members=members,
        num_tiles=num_tiles,
        tiles=tiles.view(-1, 4),
        tile_splits=tile_splits,
        partial_out=torch.full((max_splits * size, heads, dim), math.nan, device="cuda"),
        partial_stats=torch.full((max_splits * size, heads, 2), math.nan, device="cuda"),
    )


def check(
    groups: list[tuple[int, list[int]]],
    *,
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    max_splits: int = 16,
) -> None:
    """groups: shared keys, and how many each member has besides."""
    from kernels import cuda

    cuda.load()
    if not cuda.has_shared_prefix(torch.device("cuda"), dim, dtype):
        pytest.skip("not for this GPU")
    batch = make_batch(groups, heads, kv_heads, dim, dtype)
    padding = 3
    size = len(batch.lens) + padding
    shared = shared_work(batch, size, max_splits)
    assert int((shared.skipped > 0).sum()) >= sum(
        len(rests) for tokens, rests in groups if tokens >= 64 and len(rests) > 1
    )
    q = torch.cat((batch.q, batch.q[:padding]))
    seq_lens = torch.tensor([*batch.lens, *[0] * padding], dtype=torch.int32, device="cuda")
    cu = torch.arange(size + 1, dtype=torch.int32, device="cuda")
    table = torch.from_numpy(np.pad(batch.table, ((0, padding), (0, 0)))).cuda()
    workspace = cuda.DecodeWorkspace.create(size, heads, dim, q.device)
    cuda.decode_schedule(
        workspace,
        seq_lens,
        cu,
        table,
        block_size=BLOCK_SIZE,
        num_q_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        shared=shared,
    )
    inputs = (q, batch.k_cache, batch.v_cache, table, seq_lens, cu)
    for _ in range(2):  # twice: the counters must reset themselves
        out = torch.full_like(q, math.nan)
        cuda.shared_prefix(*inputs, shared=shared, scale=dim**-0.5)
        cuda.paged_decode(out, *inputs, workspace=workspace, scale=dim**-0.5, shared=shared)
    error = (out[:-padding].double() - batch.expected).norm() / batch.expected.norm()
    assert error < (6e-3 if dtype == torch.bfloat16 else 1e-3), f"relative error {error:.2e}"
    assert out[-padding:].isnan().all(), "padding rows must stay untouched"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 128])
def test_one_prefix_for_all(dim: int, dtype: torch.dtype) -> None:
    check([(2048, [*range(1, 130, 2)])], dim=dim, dtype=dtype)


def test_several_prefixes_and_loners() -> None:
    check([(640, [1, 17, 300]), (0, [33]), (64, [5] * 40), (0, [1000]), (4096, [64, 65])])


@pytest.mark.parametrize("max_splits", [1, 3, 8])
def test_any_number_of_splits(max_splits: int) -> None:
    check([(1984, [7, 90]), (320, [200] * 9)], max_splits=max_splits)


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (14, 2), (32, 1), (6, 2)])
def test_head_groups(heads: int, kv_heads: int) -> None:
    check([(512, [*range(1, 60)])], heads=heads, kv_heads=kv_heads)


def test_large_batch_whose_rests_are_split() -> None:
    gen = np.random.default_rng(3)
    check([(1024, gen.integers(1, 900, 150).tolist()), (192, gen.integers(1, 90, 60).tolist())])
