"""The decode kernel's way through tiles in FP8, without a GPU: its index arithmetic, compiled for
the host, drives an emulation of a warp and its ``mma.m16n8k16``."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kernels import build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
DIMS = (64, 96, 128, 256)
FUNCTIONS = {
    "place": ("row", "at"),
    "key_row": ("half", "lane"),
    "key_at": ("chunk", "lane"),
    "query_dim": ("step", "high", "lane"),
    "value_row": ("i", "lane"),
    "value_at": ("chunk", "lane"),
    "column": ("tile", "lane"),
}
CONSTANTS = ("kTileBytes", "kKeyBytes", "kValueBytes", "kKeyChunks", "kValueChunks")
Floats = npt.NDArray[np.float64]
Layout = Callable[..., int]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("layout")
    lines = ['#include "attention/fp8_layout.cuh"', 'extern "C" {']
    for dim in DIMS:
        of = f"sluice::Fp8Layout<{dim}>::"
        for name, arguments in FUNCTIONS.items():
            typed = ", ".join(f"int {argument}" for argument in arguments)
            call = f"{of}{name}({', '.join(arguments)})"
            lines.append(f"int {name}_{dim}({typed}) {{ return {call}; }}")
        lines += [f"int {name}_{dim}() {{ return {of}{name}; }}" for name in CONSTANTS]
    source, built = folder / "layout.cpp", folder / "layout.so"
    source.write_text("\n".join([*lines, "}"]))
    options = ["-std=c++17", "-shared", "-fPIC", f"-I{build.SOURCES}"]
    subprocess.run(["g++", *options, str(source), "-o", str(built)], check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture(params=DIMS)
def layout(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Layout:
    """``layout("place", row, at)``, ``layout("dim")``"""
    dim: int = request.param

    def call(name: str, *arguments: int) -> int:
        return dim if name == "dim" else int(getattr(library, f"{name}_{dim}")(*arguments))

    return call


def multiply(c: Floats, a: Floats, b: Floats) -> None:
    """mma.m16n8k16 on fragments: c [lane, 4], a [lane, 8], b [lane, 4], as PTX lays them out."""
    rows, columns, terms = np.zeros((16, 16)), np.zeros((16, 8)), (0, 1, 8, 9)
    for lane in range(32):
        group, place = divmod(lane, 4)
        for i in range(8):
            rows[group + i // 2 % 2 * 8, place * 2 + i % 2 + i // 4 * 8] = a[lane, i]
        for i in range(4):
            columns[place * 2 + terms[i], group] = b[lane, i]
    product = rows @ columns
    for lane in range(32):
        group, place = divmod(lane, 4)
        for i in range(4):
            c[lane, i] += product[group + i // 2 * 8, place * 2 + i % 2]


def stored(layout: Layout, tile: Floats) -> Floats:
    """A tile [16, dim] in shared memory, as copied in pieces of 16 bytes; NaN where nothing is."""
    memory = np.full(layout("kTileBytes"), np.nan)
    for row in range(16):
        for piece in range(layout("dim") // 16):
            to = layout("place", row, piece * 16)
            assert to % 16 == 0
            assert np.isnan(memory[to : to + 16]).all(), "two pieces in one place"
            memory[to : to + 16] = tile[row, piece * 16 : piece * 16 + 16]
    return memory


def vector(layout: Layout, memory: Floats, row: int, at: int, size: int) -> Floats:
    start = layout("place", row, at)
    assert start % size == 0, "not aligned"
    return memory[start : start + size]


def test_scores_and_values(layout: Layout) -> None:
    dim = layout("dim")
    rng = np.random.default_rng(dim)
    q = rng.integers(-8, 9, (8, dim)).astype(float)
    k, v = rng.integers(-8, 9, (2, 16, dim)).astype(float)
    keys, values = stored(layout, k), stored(layout, v)
    scores = np.zeros((32, 4))
    words = layout("kKeyBytes") // 4
    for step in range(dim // 16):
        a, b = np.zeros((32, 8)), np.zeros((32, 4))
        for lane in range(32):
            for i in range(8):  # register i // 2: row half i // 2 % 2, upper terms from 4 on
                row, at = layout("key_row", i // 2 % 2, lane), layout("key_at", step // words, lane)
                read = vector(layout, keys, row, at, layout("kKeyBytes"))
                a[lane, i] = read[step % words * 4 + i // 4 * 2 + i % 2]
            for i in range(4):
                at = layout("query_dim", step, i // 2, lane) + i % 2
                b[lane, i] = q[lane // 4, at]
        multiply(scores, a, b)

    by_token = np.zeros((16, 8))
    for lane in range(32):
        for i in range(4):
            by_token[layout("key_row", i // 2, lane), lane % 4 * 2 + i % 2] = scores[lane, i]
    np.testing.assert_array_equal(by_token, k @ q.T)

    # The scores, each half of them transposed, serve as weights.
    weights = np.zeros((32, 4))
    for lane in range(32):
        for i in range(4):
            key, row = lane % 4 * 2 + i % 2, lane // 4
            weights[lane, i] = scores[key * 4 + row // 2, i // 2 * 2 + row % 2]
    out = np.zeros((8, dim))
    for tile in range(dim // 16):
        o, a = np.zeros((32, 4)), np.zeros((32, 8))
        chunk, pair = divmod(tile, layout("kValueBytes") // 2)
        for lane in range(32):
            for i in range(8):  # the token of the term, and the first or the second dim
                token = i // 4 * 2 + i % 2
                row, at = layout("value_row", token, lane), layout("value_at", chunk, lane)
                read = vector(layout, values, row, at, layout("kValueBytes"))
                a[lane, i] = read[pair * 2 + i // 2 % 2]
        multiply(o, a, weights)
        for lane in range(32):
            for i in range(4):
                out[lane % 4 * 2 + i % 2, layout("column", tile, lane) + i // 2] = o[lane, i]
    np.testing.assert_array_equal(out, q @ k.T @ v)


def conflicts(layout: Layout, at: Callable[[int], int], size: int) -> int:
    """Passes over the banks that a read of ``size`` bytes a lane takes, by the fewest possible."""
    worst = 0
    lanes = 128 // size
    for first in range(0, 32, lanes):
        words: dict[int, set[int]] = {}
        for lane in range(first, first + lanes):
            for word in range(at(lane) // 4, (at(lane) + size) // 4):
                words.setdefault(word % 32, set()).add(word)
        worst = max(worst, max(map(len, words.values())))
    return worst


def test_reads_spread_over_the_banks(layout: Layout) -> None:
    """Rows that a warp reads together fall into different banks; at 64 bytes a row not all can."""

    def key(lane: int) -> int:
        return layout("place", layout("key_row", 1, lane), layout("key_at", 0, lane))

    def value(lane: int) -> int:
        return layout("place", layout("value_row", 2, lane), layout("value_at", 0, lane))

    limit = 2 if layout("dim") == 64 else 1
    assert conflicts(layout, key, layout("kKeyBytes")) == 1
    assert conflicts(layout, value, layout("kValueBytes")) <= limit
