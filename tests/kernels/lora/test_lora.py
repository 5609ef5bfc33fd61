"""Low-rank products of many adapters: on a GPU, and in Triton's interpreter on a CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import reference
from kernels.lora import (
    FEW_TOKENS,
    AdapterTiles,
    LoraMatrices,
    max_tiles,
    padded_rank,
    tile_rows,
    tile_table,
)
from tests.kernels.ahead_of_time import Recorded
from tests.kernels.interpreter import interpret

PARTS = (96, 40, 8)
RANKS = ((8, 8, 8), (64, 0, 16), (1, 33, 64), (0, 0, 0))
"""Of each slot's parts; the last slot holds an adapter that leaves the layer alone."""
SHAPES = [(1, 200), (7, 40), (40, 700), (300, 130)]
"""(tokens, inputs)"""


def some_slots(num_tokens: int) -> list[np.ndarray]:
    mixed = np.random.default_rng(num_tokens).integers(-1, len(RANKS), num_tokens)
    return [mixed, np.full(num_tokens, 1), np.full(num_tokens, -1)]


def draw(
    in_features: int, dtype: torch.dtype, device: str, parts: tuple[int, ...] = PARTS
) -> LoraMatrices:
    """What lies beyond a rank is poisoned."""
    generator = torch.Generator().manual_seed(in_features)
    ranks = torch.tensor(RANKS, dtype=torch.int32)
    made = LoraMatrices.empty(ranks, in_features, parts, 64, dtype=dtype)
    made.down.fill_(float("nan"))
    made.up.fill_(float("nan"))
    ends = made.ends.tolist()
    for slot, of_parts in enumerate(RANKS):
        for part, rank in enumerate(of_parts):
            down = torch.randn(rank, in_features, generator=generator)
            behind = slice(rank, padded_rank(rank))
            made.down[slot, part, :rank] = down / in_features**0.5
            made.down[slot, part, behind] = 0
            up = made.up[slot, ends[part] : ends[part + 1]]
            up[:, :rank] = torch.randn(parts[part], rank, generator=generator) / 8
            up[:, behind] = 0
    moved = {name: getattr(made, name).to(device) for name in ("down", "up", "ranks", "ends")}
    return replace(made, **moved)


def naive(
    out: torch.Tensor, x: torch.Tensor, matrices: LoraMatrices, slots: np.ndarray
) -> torch.Tensor:
    """Token by token, in float64."""
    out, ends = out.double().cpu(), matrices.ends.tolist()
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        for part, rank in enumerate(RANKS[slot]):
            down = matrices.down[slot, part, :rank].double().cpu()
            up = matrices.up[slot, ends[part] : ends[part + 1], :rank].double().cpu()
            out[token, ends[part] : ends[part + 1]] += up @ (down @ x[token].double().cpu())
    return out


def check(num_tokens: int, in_features: int, dtype: torch.dtype, device: str) -> None:
    from kernels.triton import lora

    matrices = draw(in_features, dtype, device)
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, in_features, generator=generator).to(device, dtype)
    out = torch.randn(num_tokens, sum(PARTS), generator=generator).to(device, dtype)
    for slots in (
        np.random.default_rng(0).integers(-1, len(RANKS), num_tokens),
        np.full(num_tokens, 1),
        np.full(num_tokens, -1),
    ):
        tiles = AdapterTiles.of(slots, torch.device(device))
        got = out.clone()
        low = lora.shrink_lora(x, matrices, tiles)
        lora.expand_lora(got, low, matrices, tiles)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        want = naive(out, x, matrices, slots).to(dtype)
        torch.testing.assert_close(got.cpu(), want, atol=tolerance, rtol=tolerance)
        assert torch.equal(got[slots < 0], out[slots < 0])


@pytest.mark.parametrize(("num_tokens", "in_features"), SHAPES)
def test_the_reference(num_tokens: int, in_features: int) -> None:
    matrices = draw(in_features, torch.float32, "cpu")
    x, out = torch.randn(num_tokens, in_features), torch.randn(num_tokens, sum(PARTS))
    sorted_slots = np.arange(num_tokens) * len(RANKS) // num_tokens
    mixed = np.random.default_rng(0).integers(-1, len(RANKS), num_tokens)
    for slots in (sorted_slots, mixed):
        got, tiles = out.clone(), AdapterTiles.of(slots, torch.device("cpu"))
        low = reference.shrink_lora(x, matrices, tiles)
        reference.expand_lora(got, low, matrices, tiles)
        want = naive(out, x, matrices, slots).float()
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself runs here")
@pytest.mark.parametrize(
    "shapes", ["SHAPES[1:2]", pytest.param("SHAPES", marks=pytest.mark.nightly)]
)
def test_interpreted_it_equals_the_products(shapes: str) -> None:
    pytest.importorskip("triton")
    code = (
        "import torch\n"
        "from tests.kernels.lora.test_lora import SHAPES, check\n"
        f"for shape in {shapes}:\n"
        "    check(*shape, torch.float32, 'cpu')\n"
    )
    interpret(code)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(
    ("num_tokens", "capability"),
    [
        (1, 90),
        *(
            pytest.param(tokens, capability, marks=pytest.mark.nightly)
            for tokens, capability in [(1, 80), (FEW_TOKENS + 1, 80), (FEW_TOKENS + 1, 90)]
        ),
    ],
)
def test_it_compiles_ahead_of_time_to_wide_loads_and_tensor_cores(
    capability: int, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = pytest.importorskip("kernels.triton.lora")
    kernels = [Recorded(lora._shrink), Recorded(lora._expand)]
    for kernel in kernels:
        monkeypatch.setattr(lora, kernel.kernel.__name__, kernel)
    ranks = torch.full((2, 3), 16, dtype=torch.int32)
    matrices = LoraMatrices.empty(ranks, 1024, (512, 256, 256), 16, dtype=torch.bfloat16)
    x, out = (torch.zeros(num_tokens, 1024, dtype=torch.bfloat16) for _ in range(2))
    tiles = AdapterTiles.of(np.zeros(num_tokens, np.int64), torch.device("cpu"))
    lora.expand_lora(out, lora.shrink_lora(x, matrices, tiles), matrices, tiles)
    for kernel in kernels:
        (made,) = kernel.compile(capability)
        assert made.metadata.shared <= 99 * 1024, "more than some GPUs have"
        ptx = made.asm["ptx"]
        assert "mma" in ptx
        assert ".v4.b32" in ptx or "cp.async" in ptx


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=400), st.booleans())
def test_every_token_with_an_adapter_is_in_one_tile_of_it(
    of_tokens: list[int], padded: bool
) -> None:
    slots = np.array(of_tokens)
    rows, most = tile_rows(len(slots)), max_tiles(len(slots), 6)
    table = torch.from_numpy(tile_table(slots, rows, most if padded else None))
    tiles = AdapterTiles.view(table, len(slots), rows)
    seen = []
    for slot, tokens in zip(tiles.slots.tolist(), tiles.tokens.tolist(), strict=True):
        there = [token for token in tokens if token >= 0]
        assert tokens == sorted(there) + [-1] * (rows - len(there))
        assert (slots[there] == slot).all()
        assert bool(there) == (slot >= 0)
        seen += there
    assert sorted(seen) == np.flatnonzero(slots >= 0).tolist()
    used = tiles.slots.tolist()
    num_used = sum(slot >= 0 for slot in used)
    assert used == sorted(used[:num_used]) + [-1] * (most - num_used if padded else 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "in_features"), [*SHAPES, (200, 14336), (1000, 4096)])
def test_on_a_gpu_it_equals_the_products(
    num_tokens: int, in_features: int, dtype: torch.dtype
) -> None:
    check(num_tokens, in_features, dtype, "cuda")
