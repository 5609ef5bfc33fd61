"""Attention over keys that are their own values, against float64; on a GPU and interpreted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from kernels.tiles import tile_list
from kernels.triton import latent_attention as module
from tests.kernels.ahead_of_time import Recorded
from tests.kernels.interpreter import interpret

BLOCK = 16
SCALE = 0.1
LIMIT = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
SHAPES: list[tuple[list[int], list[int]]] = [
    ([5], [1]),
    ([300, 0, 64, 65], [1, 1, 1, 1]),
    ([40, 700, 33], [3, 1, 2]),
    ([90, 50, 200], [90, 1, 70]),
]
"""Lengths of sequences, the queries included, and queries; a length of 0 is padding."""
INTERPRETED_SHAPES = [
    ([80, 0, 33], [1, 1, 1]),
    ([40, 130, 17], [3, 1, 2]),
    *SHAPES[:3],
    ([70, 20, 50, 200], [8, 20, 1, 5]),
]
"""The first two are small. The last has all that the last of ``SHAPES`` has, in 14 tiles of queries
for 61: a prompt that is whole and longer than a step's keys, and queries that see nothing of their
sequence's last split."""


@dataclass
class Case:
    q: torch.Tensor
    cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_queries: torch.Tensor
    k_scale: torch.Tensor | None
    expected: torch.Tensor


def make(
    lens: list[int],
    query_lens: list[int],
    *,
    heads: int,
    dim: int,
    dtype: torch.dtype,
    device: str,
    fp8: bool = False,
) -> Case:
    """Unused blocks, and what lies past a sequence's end, are poison."""
    generator = torch.Generator().manual_seed(sum(lens))
    needed = [-(-length // BLOCK) for length in lens]
    order = torch.randperm(sum(needed) + 3, generator=generator)
    cache = torch.full((len(order), BLOCK, 1, dim), float("nan"))
    table = torch.full((len(lens), max(needed) + 2), 2**30, dtype=torch.int32)
    q = torch.randn(sum(query_lens), heads, dim, generator=generator).to(dtype)
    expected = torch.zeros(q.shape, dtype=torch.float64)
    scale = torch.tensor([0.02]) if fp8 else None
    taken = token = 0
    for i, (length, num_queries) in enumerate(zip(lens, query_lens, strict=True)):
        blocks = order[taken : taken + needed[i]]
        taken += needed[i]
        table[i, : needed[i]] = blocks
        keys = torch.randn(length, dim, generator=generator).to(dtype).float()
        if scale is not None:
            keys = (keys / scale).to(torch.float8_e4m3fn).float()
        at = torch.arange(length)
        cache[blocks[at // BLOCK], at % BLOCK, 0] = keys
        exact = keys.double() * (1.0 if scale is None else float(scale))
        for query in range(num_queries if length else 0):
            seen = exact[: length - num_queries + query + 1]
            weights = (q[token + query].double() @ seen.T * SCALE).softmax(-1)
            expected[token + query] = weights @ seen
        token += num_queries
    stored = cache.to(torch.float8_e4m3fn if fp8 else dtype)
    cu_queries = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    return Case(
        q=q.to(device),
        cache=stored.to(device),
        block_table=table.to(device),
        seq_lens=seq_lens.to(device),
        cu_queries=cu_queries.to(device),
        k_scale=None if scale is None else scale.to(device),
        expected=expected,
    )


def run(case: Case, query_lens: list[int], splits: int | None = None) -> torch.Tensor:
    out = torch.full_like(case.q, float("nan"))
    seq_lens = case.seq_lens.cpu().numpy().astype(np.int64)
    tiles = tile_list(np.array(query_lens), seq_lens, case.q.shape[1], module.ROWS)
    module.latent_attention(
        out,
        case.q,
        case.cache,
        case.block_table,
        case.seq_lens,
        case.cu_queries,
        torch.from_numpy(tiles).to(case.q.device),
        scale=SCALE,
        k_scale=case.k_scale,
        splits=splits,
    )
    return out


def check(
    lens: list[int],
    query_lens: list[int],
    dtype: torch.dtype,
    device: str,
    *,
    heads: int = 16,
    dim: int = 576,
    splits: int | None = None,
    fp8: bool = False,
) -> None:
    case = make(lens, query_lens, heads=heads, dim=dim, dtype=dtype, device=device, fp8=fp8)
    out = run(case, query_lens, splits).double().cpu()
    token = 0
    for length, num_queries in zip(lens, query_lens, strict=True):
        rows = slice(token, token + num_queries)
        if length:
            error = (out[rows] - case.expected[rows]).norm() / case.expected[rows].norm()
            assert error < LIMIT[dtype], f"relative error {error:.2e}"
        else:
            assert out[rows].isnan().all(), "padding is left alone"
        token += num_queries


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself runs here")
@pytest.mark.parametrize(
    ("shapes", "numbers"),
    [
        ("INTERPRETED_SHAPES[:2]", "(3,)"),
        pytest.param("INTERPRETED_SHAPES[2:]", "(1, 3, None)", marks=pytest.mark.nightly),
    ],
)
def test_interpreted_it_equals_float64(shapes: str, numbers: str) -> None:
    code = (
        "import torch\n"
        "from tests.kernels.attention.test_latent_attention import *\n"
        f"for lens, queries in {shapes}:\n"
        f"    for splits in {numbers}:\n"
        "        check(lens, queries, torch.float32, 'cpu', heads=6, dim=40, splits=splits)\n"
        "check(*INTERPRETED_SHAPES[0], torch.float32, 'cpu', heads=6, dim=40, fp8=True)\n"
        "check(*INTERPRETED_SHAPES[1], torch.float32, 'cpu', heads=20, dim=64)\n"
    )
    interpret(code)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [*SHAPES, ([9000, 1, 4097], [1, 1, 1])])
@pytest.mark.parametrize(("heads", "dim"), [(16, 576), (128, 576), (4, 64)])
@pytest.mark.parametrize("fp8", [False, True])
def test_it_equals_float64(
    shape: tuple[list[int], list[int]], heads: int, dim: int, dtype: torch.dtype, *, fp8: bool
) -> None:
    for splits in (None, 1):
        check(*shape, dtype, "cuda", heads=heads, dim=dim, splits=splits, fp8=fp8)


def test_few_tiles_are_split_among_more_programs_than_many() -> None:
    assert [module.num_splits(tiles) for tiles in (1, 8, 64, 264, 9999)] == [32, 32, 4, 1, 1]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_compiles_for_hopper_and_fits_its_shared_memory(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *, fp8: bool
) -> None:
    recorded = {name: Recorded(getattr(module, name)) for name in ("_attend", "_merge")}
    for name, one in recorded.items():
        monkeypatch.setattr(module, name, one)
    case = make([64, 64], [1, 1], heads=16, dim=576, dtype=dtype, device="cpu", fp8=fp8)
    run(case, [1, 1])
    for one in recorded.values():
        for made in one.compile(90):
            assert made.metadata.shared <= 227 * 1024
