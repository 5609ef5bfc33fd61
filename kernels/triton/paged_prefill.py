# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""Causal attention of many query tokens a sequence over the paged KV cache (FlashAttention-2,
arXiv 2307.08691), with the query heads of a KV head packed into the rows of one tile.

Row r of a sequence is query token r // group, query head r % group: so a tile of 128 rows reads the
keys once for all query heads that share them, and any group size fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.fp8 import from_fp8


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a launch is cut into tiles."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def tiling(head_dim: int, dtype: torch.dtype, rows: int) -> Tiling:
    """The tiles for sequences of at most ``rows`` rows (query tokens times group)."""
    if head_dim > 256:  # latents: what fits a multiprocessor's memory
        return Tiling(16, 16 if dtype == torch.float32 else 32, 8, 1)
    if dtype == torch.float32:  # exact products: no tensor cores, twice the memory
        return Tiling(16 if rows <= 16 else 32, 32, 4, 2)
    if rows <= 16:
        return Tiling(16, 64, 4, 3)
    if head_dim > 128:
        return Tiling(64, 32, 4, 2)
    if rows <= 64:
        return Tiling(64, 64, 4, 3)
    return Tiling(128, 64, 4, 3)


def paged_prefill(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    tiles: torch.Tensor,
    how: Tiling,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Causal attention of the sequences in ``tiles``, into their rows of ``out``.

    q, out: [num_tokens, num_q_heads, head_dim] of one dtype, contiguous heads; k_cache, v_cache:
    [num_blocks, block_size, num_kv_heads, head_dim], contiguous; block_table: [batch, max_blocks]
    int32; seq_lens: [batch] int32, the queries included, 0 for padding; cu_queries: [batch + 1]
    int32; tiles: [num_tiles, 2] int32 of ``tiles.tile_list``, cut as ``how`` says. window: keys a
    query sees at most, itself included, 0 = all. Nothing past a sequence's end is read. k_scale,
    v_scale: [num_kv_heads] float32, of caches in FP8 (e4m3). sinks: [num_q_heads] float32, see
    ``reference.paged_attention``.
    """
    num_kv_heads, head_dim = k_cache.shape[2:]
    if k_scale is not None:  # as bytes: not every GPU that can serve this knows FP8
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    grid = (tiles.shape[0] * num_kv_heads,)
    _kernel[grid](
        out,
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        cu_queries,
        tiles,
        k_scale,
        v_scale,
        sinks,
        scale,
        soft_cap,
        window,
        q.stride(0),
        out.stride(0),
        block_table.stride(0),
        GROUP=q.shape[1] // num_kv_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=k_cache.shape[1],
        ROWS=how.rows,
        KEYS=how.keys,
        WINDOW=window > 0,
        SOFT_CAP=soft_cap > 0,
        FP8=k_scale is not None,
        SINKS=sinks is not None,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=how.num_warps,
        num_stages=how.num_stages,
    )


@triton.jit
def _logits(queries, k, scale, soft_cap, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr):
    """Scores of all queries and keys, times log2(e)."""
    qk = tl.dot(queries, tl.trans(k), input_precision=PRECISION)
    if SOFT_CAP:
        x = qk * (scale / soft_cap)
        qk = soft_cap * (2.0 / (1.0 + tl.exp2(-2.8853900817779268 * x)) - 1.0)
        return qk * 1.4426950408889634
    return qk * (scale * 1.4426950408889634)


@triton.jit
def _hide(qk, slot, position, seq_len, window, WINDOW: tl.constexpr):
    """-inf for what the query at ``position`` must not see of the keys at ``slot``."""
    visible = (slot[None, :] <= position[:, None]) & (slot < seq_len)[None, :]
    if WINDOW:
        visible &= slot[None, :] > position[:, None] - window
    return tl.where(visible, qk, float("-inf"))


@triton.jit
def _key_range(
    computed,
    num_queries,
    first_row,
    window,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Keys before begin and from end on are hidden from all rows, up to whole_end from none."""
    end = computed + min(num_queries, (first_row + ROWS - 1) // GROUP + 1)
    whole_end = (computed + first_row // GROUP + 1) // KEYS * KEYS
    begin = 0
    if WINDOW:
        begin = max(0, computed + first_row // GROUP - window + 1) // KEYS * KEYS
        whole_end = begin
    return begin, whole_end, end


@triton.jit
def _row_offsets(token, q_head, dim, stride, HEAD_DIM: tl.constexpr):
    """Where the rows are in q or out."""
    return token.to(tl.int64)[:, None] * stride + (q_head * HEAD_DIM)[:, None] + dim[None, :]


@triton.jit
def _load_block(
    k_cache,
    v_cache,
    table,
    slot,
    seq_len,
    head_at,
    in_dim,
    TOKEN_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Keys and values at the positions ``slot``; WHOLE: all of them exist."""
    if WHOLE:
        block = tl.load(table + slot // BLOCK_SIZE).to(tl.int64)
    else:
        known = slot < seq_len
        block = tl.load(table + slot // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
    at = ((block * BLOCK_SIZE + slot % BLOCK_SIZE) * TOKEN_SIZE)[:, None] + head_at[None, :]
    if not WHOLE:
        loaded = known[:, None] & in_dim[None, :]
        return tl.load(k_cache + at, loaded, 0), tl.load(v_cache + at, loaded, 0)
    if PADDED:
        return tl.load(k_cache + at, in_dim[None, :], 0), tl.load(v_cache + at, in_dim[None, :], 0)
    return tl.load(k_cache + at), tl.load(v_cache + at)


@triton.jit
def _fold(qk, best, total, acc, v, PRECISION: tl.constexpr, WHOLE: tl.constexpr):
    """Online softmax: take one more block of logits and values into account."""
    new_best = tl.maximum(best, tl.max(qk, 1))
    anchor = new_best
    if not WHOLE:  # of a row that has seen nothing yet, -inf - -inf would be NaN
        anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
    p = tl.exp2(qk - anchor[:, None])
    fade = tl.exp2(best - anchor)
    total = total * fade + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision=PRECISION)
    return new_best, total, acc


@triton.jit
def _attend_block(
    best,
    total,
    acc,
    queries,
    position,
    slot,
    seq_len,
    k_cache,
    v_cache,
    table,
    head_at,
    in_dim,
    scale,
    soft_cap,
    window,
    TOKEN: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    FP8: tl.constexpr,
    PRECISION: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """best, total and acc with the keys at ``slot``; WHOLE: every query sees them all."""
    k, v = _load_block(
        k_cache,
        v_cache,
        table,
        slot,
        seq_len,
        head_at,
        in_dim,
        TOKEN,
        BLOCK_SIZE,
        WHOLE,
        PADDED,
    )
    if FP8:
        k, v = from_fp8(k, queries.dtype), from_fp8(v, queries.dtype)
    qk = _logits(queries, k, scale, soft_cap, SOFT_CAP, PRECISION)
    if not WHOLE:
        qk = _hide(qk, slot, position, seq_len, window, WINDOW)
    return _fold(qk, best, total, acc, v, PRECISION, WHOLE)


# Where the lengths lie in what the host sends depends on the batch: one kernel serves all.
# fmt: off
@triton.jit(do_not_specialize_on_alignment=["seq_lens", "cu_queries", "tiles"])
def _kernel(
    out, q, k_cache, v_cache, block_table, seq_lens, cu_queries, tiles, k_scale, v_scale, sinks,
    scale, soft_cap, window, q_stride, out_stride, table_stride,
    GROUP: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, FP8: tl.constexpr, SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
# fmt: on
    head = tl.program_id(0) % NUM_KV_HEADS
    item = tl.program_id(0) // NUM_KV_HEADS
    sequence = tl.load(tiles + 2 * item)
    first_row = tl.load(tiles + 2 * item + 1) * ROWS
    seq_len = tl.load(seq_lens + sequence)
    if seq_len == 0:
        return
    query_start = tl.load(cu_queries + sequence)
    num_queries = tl.load(cu_queries + sequence + 1) - query_start
    computed = seq_len - num_queries

    row = first_row + tl.arange(0, ROWS)
    token = row // GROUP
    dim = tl.arange(0, PADDED_DIM)
    in_dim = dim < HEAD_DIM
    real = (token < num_queries)[:, None] & in_dim[None, :]
    q_head = head * GROUP + row % GROUP
    at = _row_offsets(query_start + token, q_head, dim, q_stride, HEAD_DIM)
    queries = tl.load(q + at, mask=real, other=0.0)
    if FP8:
        scale *= tl.load(k_scale + head)
        if queries.dtype == tl.bfloat16:  # float16 holds every e4m3, and multiplies as fast
            queries = tl.clamp(queries.to(tl.float32), -65504.0, 65504.0).to(tl.float16)

    begin, whole_end, end = _key_range(
        computed, num_queries, first_row, window, GROUP, ROWS, KEYS, WINDOW
    )
    table = block_table + sequence.to(tl.int64) * table_stride
    key = tl.arange(0, KEYS)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:  # as if a first key without a value had been folded in
        best = tl.load(sinks + q_head) * 1.4426950408889634
        total += 1.0
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    # fmt: off
    for start in tl.range(begin, whole_end, KEYS):
        best, total, acc = _attend_block(
            best, total, acc, queries, computed + token, start + key, seq_len, k_cache, v_cache,
            table, head * HEAD_DIM + dim, in_dim, scale, soft_cap, window, NUM_KV_HEADS * HEAD_DIM,
            BLOCK_SIZE, PADDED_DIM > HEAD_DIM, WINDOW, SOFT_CAP, FP8, PRECISION, True,
        )
    for start in tl.range(whole_end, end, KEYS):
        best, total, acc = _attend_block(
            best, total, acc, queries, computed + token, start + key, seq_len, k_cache, v_cache,
            table, head * HEAD_DIM + dim, in_dim, scale, soft_cap, window, NUM_KV_HEADS * HEAD_DIM,
            BLOCK_SIZE, PADDED_DIM > HEAD_DIM, WINDOW, SOFT_CAP, FP8, PRECISION, False,
        )
    # fmt: on
    acc = acc / total[:, None]
    if FP8:
        acc *= tl.load(v_scale + head)
    at = _row_offsets(query_start + token, q_head, dim, out_stride, HEAD_DIM)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=real)
