"""The Triton kernel against attention in float64, on scattered and poisoned caches."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.kernels.test_paged_decode import Case, make_case  # noqa: E402

pytestmark = pytest.mark.gpu
LIMIT = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def run(
    case: Case, query_lens: list[int], *, only: list[int] | None = None, **options: float
) -> torch.Tensor:
    from kernels.triton import paged_prefill

    group = case.q.shape[1] // case.k_cache.shape[2]
    sequences = np.array(only if only is not None else range(len(query_lens)))
    lens = np.array(query_lens)[sequences]
    how = paged_prefill.tiling(case.q.shape[2], case.q.dtype, int(lens.max()) * group)
    tiles = paged_prefill.tile_list(
        lens, case.seq_lens.cpu().numpy()[sequences].astype(np.int64), group, how.rows
    )
    tiles[:, 0] = sequences[tiles[:, 0]]
    out = torch.full_like(case.q, float("nan"))
    paged_prefill.paged_prefill(
        out,
        case.q,
        case.k_cache,
        case.v_cache,
        case.block_table,
        case.seq_lens,
        case.cu_queries,
        torch.from_numpy(tiles).cuda(),
        how,
        scale=case.q.shape[2] ** -0.5,
        **options,  # type: ignore[arg-type]
    )
    return out


def assert_close(out: torch.Tensor, case: Case) -> None:
    error = (out.double() - case.expected).norm() / case.expected.norm()
    assert error < LIMIT[out.dtype], f"relative error {error:.2e}"


SHAPES = [([1], [1]), ([70, 3, 129], [70, 1, 100]), ([600, 33, 1], [256, 33, 1])]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 32, 64, 96, 128, 256])
@pytest.mark.parametrize(("seq_lens", "query_lens"), SHAPES)
def test_equals_float64(
    seq_lens: list[int], query_lens: list[int], dim: int, dtype: torch.dtype
) -> None:
    case = make_case(seq_lens, query_lens, heads=8, kv_heads=2, dim=dim, dtype=dtype)
    assert_close(run(case, query_lens), case)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (32, 8), (15, 3), (40, 1)])
def test_any_group_size(heads: int, kv_heads: int) -> None:
    lens = [300, 40], [211, 1]
    case = make_case(*lens, heads=heads, kv_heads=kv_heads)
    assert_close(run(case, lens[1]), case)


@pytest.mark.parametrize("block_size", [1, 4, 16, 24, 256])
def test_any_block_size(block_size: int) -> None:
    lens = [300, 40], [211, 1]
    case = make_case(*lens, block_size=block_size)
    assert_close(run(case, lens[1]), case)


@pytest.mark.parametrize("window", [1, 16, 100, 5000])
def test_window(window: int) -> None:
    lens = [700, 129, 64], [300, 129, 1]
    case = make_case(*lens, window=window)
    assert_close(run(case, lens[1], window=window), case)


def test_soft_cap() -> None:
    lens = [700, 129], [300, 129]
    case = make_case(*lens, soft_cap=3.0)
    assert_close(run(case, lens[1], soft_cap=3.0), case)


def test_other_sequences_are_left_alone() -> None:
    lens = [200, 90, 300], [100, 1, 50]
    case = make_case(*lens)
    out = run(case, lens[1], only=[0, 2])
    assert out[100].isnan().all()
    out[100] = case.expected[100]
    assert_close(out, case)


def test_tiles_cover_every_query_longest_first() -> None:
    from kernels.triton.paged_prefill import tile_list

    tiles = tile_list(np.array([100, 1, 33]), np.array([100, 900, 33]), 4, 128)
    assert sorted(map(tuple, tiles.tolist())) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 0),
        (2, 0),
        (2, 1),
    ]
    assert tiles[0].tolist() == [1, 0]
    assert tiles[1].tolist() == [0, 3]
