# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""Causal attention over one head of keys that are their own values (DeepSeek's latents, arXiv
2405.04434): all query heads read the same keys, and each key once.

A head is cut into its largest power of two and the rest, so that little is padded: 576 dimensions
are 512 and 64. Where there are few tiles of queries, their keys are split among programs, whose
results a second launch merges by their maxima and sums (Flash-Decoding); how long a split is
follows on the device from the sequence's length, so a CUDA graph can hold it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.fp8 import from_fp8

ROWS = 16
"""Query tokens times heads of a program."""
_MAX_SPLITS = 32
_PROGRAMS = 264
"""About what a large GPU runs at a time."""
_MIN_SPLIT_KEYS = 64
_LOG2E = tl.constexpr(1.4426950408889634)


def num_splits(num_tiles: int) -> int:
    return max(1, min(_MAX_SPLITS, _PROGRAMS // max(1, num_tiles)))


def latent_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    tiles: torch.Tensor,
    *,
    scale: float,
    k_scale: torch.Tensor | None = None,
    splits: int | None = None,
) -> None:
    """Attention of the sequences in ``tiles``, into their rows of ``out``.

    As ``paged_prefill``, without a window or a soft cap, where one tensor is both caches, of one
    head: [num_blocks, block_size, 1, head_dim]. tiles: of ``ROWS`` rows. k_scale: of keys that are
    values, too. splits: programs that share a tile's keys; None: as many as keep a GPU busy.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_tiles, main = len(tiles), 1 << (head_dim.bit_length() - 1)
    if num_tiles == 0:
        return
    splits = num_splits(num_tiles) if splits is None else splits
    made: torch.Tensor = out
    stats: torch.Tensor | None = None
    if splits > 1:  # there are few tokens then
        made = q.new_empty(splits, num_tokens * num_heads, head_dim, dtype=torch.float32)
        stats = q.new_empty(splits, num_tokens * num_heads, 2, dtype=torch.float32)
    sizes = {
        "HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "MAIN": main,
        "REST": max(16, triton.next_power_of_2(head_dim - main)),
        "KEYS": 16 if q.dtype == torch.float32 else 32,
        "SPLITS": splits,
        "MIN_SPLIT": _MIN_SPLIT_KEYS,
        "TILE_ROWS": ROWS,
    }
    _attend[(num_tiles, splits)](
        made,
        stats,
        q,
        cache if k_scale is None else cache.view(torch.uint8),
        block_table,
        seq_lens,
        cu_queries,
        tiles,
        k_scale,
        scale,
        q.stride(0),
        out.stride(0),
        block_table.stride(0),
        num_tokens,
        BLOCK_SIZE=cache.shape[1],
        FP8=k_scale is not None,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        **sizes,
        num_warps=4,
        num_stages=2,
    )
    if splits > 1:
        _merge[(num_tiles * ROWS,)](
            out,
            made,
            stats,
            seq_lens,
            cu_queries,
            tiles,
            out.stride(0),
            num_tokens,
            **sizes,
            num_warps=4,
        )


@triton.jit
def _split_keys(seq_len, KEYS: tl.constexpr, SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr):
    """Keys of each split; the last may be shorter, and some may be empty."""
    return max(MIN_SPLIT, tl.cdiv(tl.cdiv(seq_len, SPLITS), KEYS) * KEYS)


@triton.jit
def _load_rows(base, at, real, main, rest, HEAD_DIM: tl.constexpr):
    """Of the rows that begin ``at``, [rows]: their power of two, and the rest."""
    in_rest = real[:, None] & (rest < HEAD_DIM)[None, :]
    of_main = tl.load(base + at[:, None] + main[None, :], mask=real[:, None], other=0)
    return of_main, tl.load(base + at[:, None] + rest[None, :], mask=in_rest, other=0)


@triton.jit
def _store_rows(base, at, real, main, rest, of_main, of_rest, HEAD_DIM: tl.constexpr):
    kind = base.dtype.element_ty
    in_rest = real[:, None] & (rest < HEAD_DIM)[None, :]
    tl.store(base + at[:, None] + main[None, :], of_main.to(kind), mask=real[:, None])
    tl.store(base + at[:, None] + rest[None, :], of_rest.to(kind), mask=in_rest)


@triton.jit
def _online_softmax(qk, best, total):
    """exp2(qk - the maximum so far), how much earlier ones fade, the maximum and the sum so far."""
    new_best = tl.maximum(best, tl.max(qk, 1))
    # Of a row that has seen nothing yet, -inf - -inf would be NaN.
    anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
    p = tl.exp2(qk - anchor[:, None])
    fade = tl.exp2(best - anchor)
    return p, fade, new_best, total * fade + tl.sum(p, 1)


# As in ``paged_prefill``: one kernel, wherever the lengths lie.
@triton.jit(
    do_not_specialize=["num_tokens"],
    do_not_specialize_on_alignment=["seq_lens", "cu_queries", "tiles"],
)
def _attend(
    made,
    stats,
    q,
    cache,
    block_table,
    seq_lens,
    cu_queries,
    tiles,
    k_scale,
    scale,
    q_stride,
    out_stride,
    table_stride,
    num_tokens,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FP8: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """made: ``out``, or with more than one split what ``_merge`` merges."""
    sequence = tl.load(tiles + 2 * tl.program_id(0))
    seq_len = tl.load(seq_lens + sequence)
    length = _split_keys(seq_len, KEYS, SPLITS, MIN_SPLIT)
    begin = tl.program_id(1) * length
    if begin >= seq_len:
        return
    end = min(begin + length, seq_len)
    query_start = tl.load(cu_queries + sequence)
    num_queries = tl.load(cu_queries + sequence + 1) - query_start
    first_row = tl.load(tiles + 2 * tl.program_id(0) + 1) * TILE_ROWS
    row = first_row + tl.arange(0, TILE_ROWS)
    token = row // HEADS
    position = seq_len - num_queries + token
    real = token < num_queries
    if SPLITS == 1:  # what comes behind the last query is hidden; a split must not be missing
        end = min(end, seq_len - num_queries + (first_row + TILE_ROWS - 1) // HEADS + 1)
    main = tl.arange(0, MAIN)
    rest = MAIN + tl.arange(0, REST)
    from_q = (query_start + token).to(tl.int64) * q_stride + row % HEADS * HEAD_DIM
    q_main, q_rest = _load_rows(q, from_q, real, main, rest, HEAD_DIM)
    factor = tl.load(k_scale) if FP8 else 1.0
    best = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    acc_main = tl.zeros([TILE_ROWS, MAIN], tl.float32)
    acc_rest = tl.zeros([TILE_ROWS, REST], tl.float32)
    table = block_table + sequence.to(tl.int64) * table_stride
    for start in tl.range(begin, end, KEYS):
        slot = start + tl.arange(0, KEYS)
        known = slot < end
        block = tl.load(table + slot // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        at = (block * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM
        k_main, k_rest = _load_rows(cache, at, known, main, rest, HEAD_DIM)
        if FP8:
            k_main, k_rest = from_fp8(k_main, q_main.dtype), from_fp8(k_rest, q_main.dtype)
        qk = tl.dot(q_main, tl.trans(k_main), input_precision=PRECISION)
        qk = tl.dot(q_rest, tl.trans(k_rest), qk, input_precision=PRECISION)
        visible = known[None, :] & (slot[None, :] <= position[:, None])
        qk = tl.where(visible, qk * (scale * factor * _LOG2E), float("-inf"))
        p, fade, best, total = _online_softmax(qk, best, total)
        p = p.to(k_main.dtype)
        acc_main = tl.dot(p, k_main, acc_main * fade[:, None], input_precision=PRECISION)
        acc_rest = tl.dot(p, k_rest, acc_rest * fade[:, None], input_precision=PRECISION)
    if SPLITS == 1:
        divisor = tl.where(real, total, 1.0)[:, None]
        acc_main, acc_rest = acc_main / divisor, acc_rest / divisor
        to = (query_start + token).to(tl.int64) * out_stride + row % HEADS * HEAD_DIM
    else:
        to = tl.program_id(1).to(tl.int64) * num_tokens * HEADS + query_start * HEADS + row
        tl.store(stats + to * 2, best, mask=real)
        tl.store(stats + to * 2 + 1, total, mask=real)
        to *= HEAD_DIM
    _store_rows(made, to, real, main, rest, acc_main * factor, acc_rest * factor, HEAD_DIM)


@triton.jit(
    do_not_specialize=["num_tokens"],
    do_not_specialize_on_alignment=["seq_lens", "cu_queries", "tiles"],
)
def _merge(
    out,
    partial,
    stats,
    seq_lens,
    cu_queries,
    tiles,
    out_stride,
    num_tokens,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
):
    """A program merges one row."""
    tile = tl.program_id(0) // TILE_ROWS
    sequence = tl.load(tiles + 2 * tile)
    row = tl.load(tiles + 2 * tile + 1) * TILE_ROWS + tl.program_id(0) % TILE_ROWS
    seq_len = tl.load(seq_lens + sequence)
    query_start = tl.load(cu_queries + sequence)
    num_queries = tl.load(cu_queries + sequence + 1) - query_start
    if (row // HEADS >= num_queries) | (seq_len == 0):
        return
    used = tl.cdiv(seq_len, _split_keys(seq_len, KEYS, SPLITS, MIN_SPLIT))
    first = (query_start * HEADS + row).to(tl.int64)
    stride = num_tokens * HEADS
    main = tl.arange(0, MAIN)
    rest = MAIN + tl.arange(0, REST)
    in_rest = rest < HEAD_DIM
    best = float("-inf")
    for split in tl.range(0, used):
        best = max(best, tl.load(stats + (split * stride + first) * 2))
    total = 0.0
    acc_main = tl.zeros([MAIN], tl.float32)
    acc_rest = tl.zeros([REST], tl.float32)
    for split in tl.range(0, used):
        at = split * stride + first
        weight = tl.exp2(tl.load(stats + at * 2) - best)
        total += weight * tl.load(stats + at * 2 + 1)
        acc_main += weight * tl.load(partial + at * HEAD_DIM + main)
        acc_rest += weight * tl.load(partial + at * HEAD_DIM + rest, mask=in_rest, other=0.0)
    to = out + (query_start + row // HEADS).to(tl.int64) * out_stride + row % HEADS * HEAD_DIM
    tl.store(to + main, (acc_main / total).to(out.dtype.element_ty))
    tl.store(to + rest, (acc_rest / total).to(out.dtype.element_ty), mask=in_rest)
