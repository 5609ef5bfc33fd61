"""Decode with keys that sequences share, read once for all of them, against float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.runner.shared_prefix import Layout, find_groups  # noqa: E402
from tests.kernels.test_paged_decode import attention_float64  # noqa: E402

pytestmark = pytest.mark.gpu
BLOCK_SIZE = 16


def check(
    groups: list[tuple[int, list[int]]],
    *,
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    max_splits: int = 16,
    padding: int = 3,
) -> None:
    """groups: shared keys, and how many each member has besides."""
    from kernels import cuda

    cuda.load()
    device = torch.device("cuda")
    if not cuda.has_shared_prefix(device, dim, dtype):
        pytest.skip("not for this GPU")
    gen = torch.Generator(device="cuda").manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, device="cuda").to(dtype)

    lens = [shared + rest for shared, rests in groups for rest in rests]
    batch = len(lens)
    num_blocks = sum(-(-n // BLOCK_SIZE) for n in lens) + 9
    shape = (num_blocks, BLOCK_SIZE, kv_heads, dim)
    k_cache = torch.full(shape, float("nan"), device="cuda", dtype=dtype)
    v_cache = k_cache.clone()
    free = iter(torch.randperm(num_blocks, generator=gen, device="cuda").tolist())
    width = max(-(-n // BLOCK_SIZE) for n in lens)
    table = np.full((batch + padding, width), 2**30, np.int32)
    q = randn(batch + padding, heads, dim)
    expected = torch.zeros(batch, heads, dim, dtype=torch.float64, device="cuda")

    def store(k: torch.Tensor, v: torch.Tensor, blocks: list[int]) -> None:
        slots = torch.arange(len(k), device="cuda")
        where = torch.tensor(blocks, device="cuda")[slots // BLOCK_SIZE], slots % BLOCK_SIZE
        k_cache[where], v_cache[where] = k, v

    row = 0
    for shared, rests in groups:
        common = [next(free) for _ in range(shared // BLOCK_SIZE)]
        k, v = randn(shared, kv_heads, dim), randn(shared, kv_heads, dim)
        if common:
            store(k, v, common)
        for rest in rests:
            own_k, own_v = randn(rest, kv_heads, dim), randn(rest, kv_heads, dim)
            own = [next(free) for _ in range(-(-rest // BLOCK_SIZE))]
            store(own_k, own_v, own)
            table[row, : len(common) + len(own)] = common + own
            expected[row] = attention_float64(
                q[row : row + 1], torch.cat((k, own_k)), torch.cat((v, own_v)), 0, 0.0, None
            )[0]
            row += 1

    found = find_groups(table[:batch], (np.array(lens) - 1) // BLOCK_SIZE, BLOCK_SIZE)
    assert sum(len(group.members) for group in found) >= sum(
        len(rests) for shared, rests in groups if shared >= 64 and len(rests) > 1
    )
    size = batch + padding
    layout = Layout(size, max(512, size), max_splits)
    work = np.zeros(layout.size, np.int32)
    layout.fill(work, found, cuda.PREFILL_ROWS // (heads // kv_heads), kv_heads, 132)
    sent = torch.from_numpy(work).cuda()
    skipped, splits, members, num_tiles, tiles, tile_splits = (sent[p] for p in layout.parts())
    nan = float("nan")
    shared_work = cuda.SharedPrefixes(
        skipped=skipped,
        splits=splits,
        members=members,
        num_tiles=num_tiles,
        tiles=tiles.view(-1, 4),
        tile_splits=tile_splits,
        partial_out=torch.full((max_splits * size, heads, dim), nan, device="cuda"),
        partial_stats=torch.full((max_splits * size, heads, 2), nan, device="cuda"),
    )
    seq_lens = torch.tensor([*lens, *[0] * padding], dtype=torch.int32, device="cuda")
    cu = torch.arange(size + 1, dtype=torch.int32, device="cuda")
    block_table = torch.from_numpy(table).cuda()
    workspace = cuda.DecodeWorkspace.create(size, heads, dim, device)
    cuda.decode_schedule(
        workspace,
        seq_lens,
        cu,
        block_table,
        block_size=BLOCK_SIZE,
        num_q_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        shared=shared_work,
    )
    inputs = (q, k_cache, v_cache, block_table, seq_lens, cu)
    for _ in range(2):  # twice: the counters must reset themselves
        out = torch.full_like(q, nan)
        cuda.shared_prefix(*inputs, shared_work, scale=dim**-0.5)
        cuda.paged_decode(out, *inputs, workspace, scale=dim**-0.5, shared=shared_work)
    got = out[:batch].double()
    error = (got - expected).norm() / expected.norm()
    assert error < (6e-3 if dtype == torch.bfloat16 else 1e-3), f"relative error {error:.2e}"
    assert out[batch:].isnan().all(), "padding rows must stay untouched"


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
