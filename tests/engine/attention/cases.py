"""Random paged batches, and what attention over them must be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from engine.attention.base import AttentionBackend, AttentionBatch, AttentionOptions, KVScales
from kernels import reference

BLOCK_SIZE, KV_HEADS = 4, 2
SHAPES = [
    [(1, 1)],
    [(1, 9)],
    [(1, 8), (1, 8)],
    [(1, 3), (1, 17), (1, 4), (1, 30)],
    [(7, 7)],
    [(5, 21)],
    [(6, 6), (3, 3), (1, 1)],
    [(4, 12), (4, 12)],
    [(20, 20), (9, 40)],
    [(1, 12), (9, 9), (1, 2), (5, 33), (1, 40), (2, 13), (30, 31)],
]
"""(query_len, seq_len) of the sequences of a batch."""


def attend(
    backend: AttentionBackend,
    shapes: Sequence[tuple[int, int]],
    heads: int,
    *,
    head_dim: int = 8,
    seed: int = 0,
    window: int | None = None,
    softcap: float | None = None,
    fp8: bool = False,
    left_behind: bool = False,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run sequences through the backend and the oracle. fp8: over a cache in FP8.

    Whatever no sequence owns is NaN in the cache and nonsense in the block table. The queries are
    a view of a wider tensor, as they are in a model. ``left_behind``: nobody owns the blocks that
    are further back than the window, either.
    """
    gen = torch.Generator().manual_seed(seed)
    query_lens = np.array([q for q, _ in shapes])
    seq_lens = np.array([kv for _, kv in shapes])
    blocks_used = -(-seq_lens // BLOCK_SIZE)
    num_blocks = int(blocks_used.sum()) + 5
    order = torch.randperm(num_blocks, generator=gen).to(torch.int32)
    rows = torch.randperm(len(shapes) + 3, generator=gen)[: len(shapes)]
    table = torch.full((len(shapes) + 3, int(blocks_used.max()) + 2), 2**30, dtype=torch.int32)
    k_cache, v_cache = torch.full((2, num_blocks, BLOCK_SIZE, KV_HEADS, head_dim), math.nan)
    taken = 0
    for row, seq_len, used in zip(rows.tolist(), seq_lens.tolist(), blocks_used, strict=True):
        table[row, :used] = order[taken : taken + used]
        taken += int(used)
        position = torch.arange(seq_len)
        where = table[row, position // BLOCK_SIZE].long(), position % BLOCK_SIZE
        k_cache[where], v_cache[where] = torch.randn(
            2, seq_len, KV_HEADS, head_dim, generator=gen
        ).unbind()
    fused = torch.randn(int(query_lens.sum()), heads + 3, head_dim, generator=gen)
    q = fused[:, :heads]
    scales: KVScales | None = None
    if fp8:
        scales = KVScales(torch.tensor([0.011, 0.07]), torch.tensor([0.03, 0.005]))
        k_cache = reference.quantize_heads(k_cache, scales.k)
        v_cache = reference.quantize_heads(v_cache, scales.v)
    before = k_cache.clone(), v_cache.clone(), table.clone()
    if left_behind:
        assert window is not None
        for row, query_len, seq_len in zip(rows.tolist(), query_lens, seq_lens, strict=True):
            first = max(0, int(seq_len - query_len) - window + 1) // BLOCK_SIZE
            k_cache[table[row, :first].long()] = v_cache[table[row, :first].long()] = math.nan
            table[row, :first] = 2**30
    batch = AttentionBatch(
        query_lens, seq_lens, rows.numpy(), table, window=window if left_behind else None
    )
    step = backend.prepare(batch, BLOCK_SIZE)
    out = step(q, k_cache, v_cache, AttentionOptions(0.4, window, softcap, scales, sinks))
    assert out.is_contiguous()
    k_cache, v_cache, table = before
    expected = reference.paged_attention(
        q,
        k_cache,
        v_cache,
        table[rows],
        torch.from_numpy(seq_lens),
        torch.from_numpy(np.concatenate(([0], query_lens.cumsum()))),
        scale=0.4,
        window=window,
        softcap=softcap,
        k_scale=scales.k if scales else None,
        v_scale=scales.v if scales else None,
        sinks=sinks,
    )
    return out, expected
