"""The prefill kernels against attention in float64, on scattered and poisoned caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.attention.paged_cases import Case, make_case
from tests.kernels.interpreter import interpret

gpu = pytest.mark.gpu
LIMIT = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def run(
    case: Case, query_lens: list[int], *, only: list[int] | None = None, **options: Any
) -> torch.Tensor:
    from kernels.tiles import tile_list
    from kernels.triton import paged_prefill

    group = case.q.shape[1] // case.k_cache.shape[2]
    sequences = np.array(only if only is not None else range(len(query_lens)))
    lens = np.array(query_lens)[sequences]
    how = paged_prefill.tiling(case.q.shape[2], case.q.dtype, int(lens.max()) * group)
    tiles = tile_list(
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
        torch.from_numpy(tiles).to(case.q.device),
        how,
        scale=case.q.shape[2] ** -0.5,
        **case.scales,
        **options,
    )
    return out


def run_hopper(
    case: Case, query_lens: list[int], *, only: list[int] | None = None, **options: Any
) -> torch.Tensor:
    from kernels import cuda
    from kernels.tiles import tile_list

    cuda.load()
    if not cuda.has_prefill(case.q.device, case.q.shape[2], case.q.dtype):
        pytest.skip("not for this GPU, head size or dtype")
    group = case.q.shape[1] // case.k_cache.shape[2]
    sequences = np.array(only if only is not None else range(len(query_lens)))
    lens = np.array(query_lens)[sequences]
    known = case.seq_lens.cpu().numpy()[sequences].astype(np.int64)
    tiles = tile_list(lens, known, group, cuda.PREFILL_ROWS)
    tiles[:, 0] = sequences[tiles[:, 0]]
    out = torch.full_like(case.q, float("nan"))
    cuda.native.paged_prefill(
        out,
        case.q,
        case.k_cache,
        case.v_cache,
        case.block_table,
        case.seq_lens,
        case.cu_queries,
        torch.from_numpy(tiles).cuda(),
        scale=case.q.shape[2] ** -0.5,
        **options,
    )
    return out


kernels = pytest.mark.parametrize("kernel", [run, run_hopper], ids=["triton", "hopper"])


def assert_close(out: torch.Tensor, case: Case) -> None:
    error = (out.double() - case.expected).norm() / case.expected.norm()
    assert error < LIMIT[out.dtype], f"relative error {error:.2e}"


SHAPES = [([1], [1]), ([70, 3, 129], [70, 1, 100]), ([600, 33, 1], [256, 33, 1])]
Kernel = Callable[..., torch.Tensor]


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 32, 64, 96, 128, 256])
@pytest.mark.parametrize(("seq_lens", "query_lens"), SHAPES)
@kernels
def test_equals_float64(
    seq_lens: list[int], query_lens: list[int], dim: int, dtype: torch.dtype, kernel: Kernel
) -> None:
    case = make_case(seq_lens, query_lens, heads=8, kv_heads=2, dim=dim, dtype=dtype)
    assert_close(kernel(case, query_lens), case)


@gpu
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (32, 8), (15, 3), (40, 1)])
@kernels
def test_any_group_size(heads: int, kv_heads: int, kernel: Kernel) -> None:
    lens = [300, 40], [211, 1]
    case = make_case(*lens, heads=heads, kv_heads=kv_heads)
    assert_close(kernel(case, lens[1]), case)


@gpu
@pytest.mark.parametrize("block_size", [1, 4, 16, 24, 256])
def test_any_block_size(block_size: int) -> None:
    lens = [300, 40], [211, 1]
    case = make_case(*lens, block_size=block_size)
    assert_close(run(case, lens[1]), case)


@gpu
@pytest.mark.parametrize("window", [1, 16, 100, 5000])
@kernels
def test_window(window: int, kernel: Kernel) -> None:
    lens = [700, 129, 64], [300, 129, 1]
    case = make_case(*lens, window=window)
    assert_close(kernel(case, lens[1], window=window), case)


@gpu
@kernels
def test_soft_cap(kernel: Kernel) -> None:
    lens = [700, 129], [300, 129]
    case = make_case(*lens, soft_cap=3.0)
    assert_close(kernel(case, lens[1], soft_cap=3.0), case)


@gpu
@pytest.mark.parametrize("window", [0, 128])
@pytest.mark.parametrize("dim", [64, 128])
@kernels
def test_sinks(dim: int, window: int, kernel: Kernel) -> None:
    lens = [700, 129], [300, 129]
    sinks = torch.linspace(-3, 6, 64, device="cuda")
    case = make_case(*lens, heads=64, kv_heads=8, dim=dim, window=window, sinks=sinks)
    assert_close(kernel(case, lens[1], window=window, sinks=sinks), case)


@gpu
@kernels
def test_other_sequences_are_left_alone(kernel: Kernel) -> None:
    lens = [200, 90, 300], [100, 1, 50]
    case = make_case(*lens)
    out = kernel(case, lens[1], only=[0, 2])
    assert out[100].isnan().all()
    out[100] = case.expected[100]
    assert_close(out, case)


@gpu
@pytest.mark.parametrize("block_size", [16, 48, 256])
def test_hopper_block_sizes(block_size: int) -> None:
    lens = [300, 40], [211, 1]
    case = make_case(*lens, block_size=block_size)
    assert_close(run_hopper(case, lens[1]), case)


@gpu
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_hopper_random_batches(dim: int) -> None:
    gen = np.random.default_rng(dim)
    for seed in range(12):
        query_lens = gen.integers(1, 700, gen.integers(1, 24))
        seq_lens = (query_lens + gen.integers(0, 1500, len(query_lens))).tolist()
        case = make_case(seq_lens, query_lens.tolist(), dim=dim, seed=seed)
        assert_close(run_hopper(case, query_lens.tolist()), case)


@gpu
def test_hopper_large_scores() -> None:
    case = make_case([2500, 900], [1200, 900], q_scale=16)
    assert_close(run_hopper(case, [1200, 900]), case)


FP8_CASES: list[tuple[tuple[list[int], list[int]], dict[str, Any]]] = [
    (([70, 3, 129], [70, 1, 100]), {}),
    (([40, 33, 1], [9, 33, 1]), {"dim": 96, "heads": 6, "kv_heads": 3}),
    (([90, 40], [30, 1]), {"window": 16}),
    (([90, 40], [30, 1]), {"soft_cap": 3.0, "block_size": 4}),
]


def check_fp8(index: int, dtype: torch.dtype, device: str) -> None:
    lens, how = FP8_CASES[index]
    shape: dict[str, Any] = {"heads": 4, "kv_heads": 2, "dim": 64, **how}
    case = make_case(*lens, dtype=dtype, fp8=True, device=device, **shape)
    options = {name: how[name] for name in ("window", "soft_cap") if name in how}
    assert_close(run(case, lens[1], **options), case)


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("index", range(len(FP8_CASES)))
def test_fp8_cache(index: int, dtype: torch.dtype) -> None:
    check_fp8(index, dtype, "cuda")


def check_sinks(device: str) -> None:
    sinks = torch.tensor([-2.0, 0.0, 1.0, 6.0], device=device)
    lens, shape = SHAPES[1], partial(make_case, heads=4, kv_heads=2, dim=24, dtype=torch.float32)
    case = shape(*lens, window=16, sinks=sinks, device=device)
    assert_close(run(case, lens[1], window=16, sinks=sinks), case)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself runs here")
@pytest.mark.parametrize("cases", ["[1:]", pytest.param("[:1]", marks=pytest.mark.nightly)])
def test_interpreted_it_equals_float64(cases: str) -> None:
    code = (
        "import torch\n"
        "from tests.kernels.attention.test_paged_prefill import *\n"
        "for lens in SHAPES[:2]:\n"
        "    case = make_case(\n"
        "        *lens, heads=4, kv_heads=2, dim=24, dtype=torch.float32, device='cpu'\n"
        "    )\n"
        "    assert_close(run(case, lens[1]), case)\n"
        f"for index in range(len(FP8_CASES)){cases}:\n"
        "    check_fp8(index, torch.float32, 'cpu')\n"
        "check_fp8(1, torch.bfloat16, 'cpu')\n"
        "check_sinks('cpu')\n"
    )
    interpret(code)
