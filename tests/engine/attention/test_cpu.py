from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.base import AttentionBatch, AttentionOptions
from engine.attention.cpu import CpuAttention
from kernels import cpu
from tests.engine.attention.cases import SHAPES, attend

pytestmark = pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")


@pytest.mark.parametrize("heads", [2, 6, 8])
@pytest.mark.parametrize("head_dim", [6, 16, 48, 64, 72])
@pytest.mark.parametrize("shapes", SHAPES)
def test_equals_the_oracle(shapes: list[tuple[int, int]], heads: int, head_dim: int) -> None:
    out, expected = attend(CpuAttention(), shapes, heads, head_dim=head_dim)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "softcap"), [(1, None), (3, None), (8, 2.0), (None, 0.7)])
@pytest.mark.parametrize("shapes", SHAPES)
def test_windows_and_soft_caps_equal_the_oracle(
    shapes: list[tuple[int, int]], window: int | None, softcap: float | None
) -> None:
    out, expected = attend(CpuAttention(), shapes, 6, window=window, softcap=softcap)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (3, None), (8, 2.0)])
@pytest.mark.parametrize("shapes", SHAPES)
def test_sinks_equal_the_oracle(
    shapes: list[tuple[int, int]], window: int | None, softcap: float | None
) -> None:
    sinks = torch.tensor([-3.0, 0.0, 1.0, 2.0, 5.0, 9.0])
    out, expected = attend(CpuAttention(), shapes, 6, window=window, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head_dim", [6, 48, 64])
@pytest.mark.parametrize("shapes", SHAPES)
def test_a_cache_in_fp8_equals_the_oracle(shapes: list[tuple[int, int]], head_dim: int) -> None:
    out, expected = attend(CpuAttention(), shapes, 6, head_dim=head_dim, window=8, fp8=True)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 8, 25])
@pytest.mark.parametrize("shapes", SHAPES)
def test_what_a_window_has_left_behind_is_not_read(
    shapes: list[tuple[int, int]], window: int
) -> None:
    out, expected = attend(CpuAttention(), shapes, 6, window=window, left_behind=True)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 5, 8, 9, 19]), st.integers(0, 70)),
        min_size=1,
        max_size=9,
    ),
    num_threads=st.integers(1, 4),
    seed=st.integers(0, 100),
    fp8=st.booleans(),
)
def test_any_batch_on_any_number_of_threads_equals_the_oracle(
    shapes: list[tuple[int, int]], num_threads: int, seed: int, fp8: bool
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        out, expected = attend(
            CpuAttention(),
            [(q, q + past) for q, past in shapes],
            4,
            head_dim=16,
            seed=seed,
            fp8=fp8,
        )
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size", "window"),
    [(4, 32, 4, None), (2, 128, 16, None), (8, 48, 16, 11), (6, 64, 32, 20), (2, 72, 16, None)],
)
def test_a_sequence_gets_the_same_bits_in_any_batch_and_chunking(
    heads: int, head_dim: int, block_size: int, window: int | None
) -> None:
    """Queries 40..62 of one sequence: alone, one by one, cut elsewhere, and among others."""
    gen = torch.Generator().manual_seed(0)
    num_blocks = -(-63 // block_size)
    k_cache, v_cache = torch.randn(
        2, 3 * num_blocks, block_size, 2, head_dim, generator=gen
    ).unbind()
    table = torch.randperm(3 * num_blocks, generator=gen).view(3, num_blocks).to(torch.int32)
    q = torch.randn(23, heads, head_dim, generator=gen)
    how = AttentionOptions(0.3, window=window)

    def attend_batch(lens: list[tuple[int, int]], queries: torch.Tensor) -> torch.Tensor:
        query_lens, seq_lens = np.array(lens).T.copy()
        batch = AttentionBatch(query_lens, seq_lens, np.arange(len(lens)), table)
        return CpuAttention().prepare(batch, block_size)(queries, k_cache, v_cache, how)

    chunk = attend_batch([(23, 63)], q)
    single = torch.cat([attend_batch([(1, 41 + i)], q[i : i + 1]) for i in range(23)])
    cut = torch.cat((attend_batch([(13, 53)], q[:13]), attend_batch([(10, 63)], q[13:])))
    beside = attend_batch([(23, 63), (1, 9), (12, 21)], torch.cat((q, q[:1], q[:12])))[:23]
    assert torch.equal(chunk, single)
    assert torch.equal(chunk, cut)
    assert torch.equal(chunk, beside)
