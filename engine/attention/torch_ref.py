"""Paged attention in plain torch: gather the blocks, then one fused attention call per group.

Sequences of a step are padded to common lengths in as few groups as the padding is worth: a decode
batch is usually one group, a long prompt chunk a group of its own.

    group of B sequences     queries [B, q_len]          keys [B, kv_len]
    sequence i               0 .. n_i-1 | repeats last   0 .. seq_len_i-1 | zeroed, masked
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from engine.attention.base import AttentionBatch, AttentionOptions
from kernels.reference import dequantize_heads

_GROUP_COST = 8192
"""What one more group costs, in cells of its query-key matrix (measured on a CPU)."""
_KEY_COST = 4
"""What gathering one key costs, in the same unit."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences padded to one shape. Tensors are None where there is nothing to do."""

    query_len: int
    kv_len: int
    token_index: torch.Tensor | None
    """[B * query_len]: the token of each padded query; None: all tokens in their order."""
    out_rows: torch.Tensor | None
    """Padded queries that are real, and the tokens they belong to (``out_tokens``)."""
    out_tokens: torch.Tensor | None
    blocks: torch.Tensor
    """[B * num_blocks]"""
    stale: torch.Tensor | None
    """Gathered keys past their sequence's end: [num] rows of [B * num_blocks * block_size]."""
    causal: bool
    """Query j sees keys 0..j: every sequence starts with this step."""
    positions: Ints
    """[B, query_len], on the host: those of the queries, which see no later key."""
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)
    """By window, as layers ask for them: [B, 1, query_len, kv_len], 0 or -inf; None: nothing to
    hide."""


class TorchAttention:
    """Every dtype and device; the reference for the other backends."""

    name = "torch"
    block_size_multiple = 1

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def prepare(
        self, batch: AttentionBatch, block_size: int, members: Ints | None = None
    ) -> TorchStepAttention:
        """members: the sequences to serve, ascending; None: all."""
        if members is None:
            groups = partition(batch.query_lens, batch.seq_lens)
        else:
            within = partition(batch.query_lens[members], batch.seq_lens[members])
            groups = [members[group] for group in within]
        first_tokens = np.cumsum(batch.query_lens) - batch.query_lens
        return TorchStepAttention(
            [self._build(batch, group, first_tokens, block_size) for group in groups]
        )

    def _build(
        self, batch: AttentionBatch, members: Ints, first_tokens: Ints, block_size: int
    ) -> _Group:
        query_lens, seq_lens = batch.query_lens[members], batch.seq_lens[members]
        first_blocks = np.zeros_like(seq_lens)
        if batch.window is not None:
            first_blocks = np.maximum(seq_lens - query_lens - batch.window + 1, 0) // block_size
            # Counted from there on, all is as if the blocks before had never been.
            seq_lens = seq_lens - first_blocks * block_size
        query_len, kv_len = int(query_lens.max()), int(seq_lens.max())
        num_blocks = -(-kv_len // block_size)
        whole = len(members) == len(batch.query_lens)  # Then they are in their order.
        table = self._blocks(batch, members, first_blocks, num_blocks)
        blocks_used = -(-seq_lens // block_size)
        if (blocks_used != num_blocks).any():
            unused = np.arange(num_blocks) >= blocks_used[:, None]
            table = table.masked_fill(self._tensor(unused), 0)
        positions = np.arange(num_blocks * block_size)
        stale = np.flatnonzero((positions >= seq_lens[:, None]) & (positions < kv_len))

        causal = bool((query_lens == seq_lens).all())
        token_index = out_rows = out_tokens = None
        if not (whole and query_len * len(members) == query_lens.sum()):
            offsets = np.minimum(np.arange(query_len), query_lens[:, None] - 1)
            tokens = (first_tokens[members, None] + offsets).ravel()
            real = np.flatnonzero(np.arange(query_len) < query_lens[:, None])
            token_index = self._tensor(tokens)
            out_tokens = self._tensor(tokens[real])
            out_rows = self._tensor(real) if len(real) < len(tokens) else None
        return _Group(
            query_len=query_len,
            kv_len=kv_len,
            token_index=token_index,
            out_rows=out_rows,
            out_tokens=out_tokens,
            blocks=table.reshape(-1),
            stale=self._tensor(stale) if len(stale) else None,
            causal=causal,
            # Padded queries past the last real one see what the last sees.
            positions=(seq_lens - query_lens)[:, None]
            + np.minimum(np.arange(query_len), query_lens[:, None] - 1),
        )

    def _blocks(
        self, batch: AttentionBatch, members: Ints, first_blocks: Ints, num_blocks: int
    ) -> torch.Tensor:
        """[B, num_blocks]: from the first one on of each."""
        rows = self._tensor(batch.rows[members])
        if not first_blocks.any():
            return batch.block_table[:, :num_blocks][rows]
        last = batch.block_table.shape[1] - 1
        places = np.minimum(first_blocks[:, None] + np.arange(num_blocks), last)
        return batch.block_table[rows[:, None], self._tensor(places)]

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class TorchStepAttention:
    """A step, as groups of sequences that are padded to one shape each."""

    groups: list[_Group]

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        if self.groups[0].token_index is None:
            return _attend(self.groups[0], q, k_cache, v_cache, how)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.attend_into(out, q, k_cache, v_cache, how)
        return out

    def attend_into(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> None:
        """Write the tokens of the groups, and no others."""
        for group in self.groups:
            assert group.token_index is not None
            assert group.out_tokens is not None
            queries = q[group.token_index]
            attended = _attend(group, queries, k_cache, v_cache, how)
            if group.out_rows is not None:
                attended = attended[group.out_rows]
            out.index_copy_(0, group.out_tokens, attended)


def _attend(
    group: _Group,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    how: AttentionOptions,
) -> torch.Tensor:
    """q, result: [B * query_len, num_q_heads, head_dim]."""
    grouped = q.reshape(-1, group.query_len, *q.shape[1:]).transpose(1, 2)
    batch, scales, window = grouped.shape[0], how.kv_scales, how.window
    k_scale, v_scale = (scales.k, scales.v) if scales else (None, None)
    keys = _gather(group, k_cache, batch, k_scale, q.dtype)
    values = keys if v_cache is k_cache else _gather(group, v_cache, batch, v_scale, q.dtype)
    if window is not None and window >= group.kv_len:
        window = None
    is_fused = how.softcap is None and how.sinks is None
    causal = group.causal and window is None and is_fused
    mask = None if causal else _mask(group, window, q)
    if is_fused:
        out = F.scaled_dot_product_attention(
            grouped, keys, values, mask, is_causal=causal, scale=how.scale, enable_gqa=True
        )
    else:
        out = _unfused_attention(grouped, keys, values, mask, how)
    return out.transpose(1, 2).reshape(q.shape).contiguous()


def _unfused_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    how: AttentionOptions,
) -> torch.Tensor:
    """What torch's fused attention does not offer. q: [B, num_q_heads, query_len, head_dim]."""
    group_size = q.shape[1] // k.shape[1]
    # The queries of a KV head side by side: [B, num_kv_heads, group_size, query_len, head_dim].
    by_kv_head = q.reshape(q.shape[0], -1, group_size, *q.shape[2:])
    scores = torch.matmul(by_kv_head, k.unsqueeze(2).transpose(-1, -2)).float()
    if how.softcap is None:
        scores *= how.scale
    else:
        scores = torch.tanh(scores * (how.scale / how.softcap)).mul_(how.softcap)
    if mask is not None:
        scores += mask.unsqueeze(1)
    if how.sinks is not None:
        sinks = how.sinks.float().view(-1, group_size, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sinks), -1)
    weights = scores.softmax(-1)[..., : k.shape[2]].to(v.dtype)
    return torch.matmul(weights, v.unsqueeze(2)).flatten(1, 2)


def _mask(group: _Group, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
    if window not in group.masks:
        position = group.positions[:, None, :, None]
        key = np.arange(group.kv_len)
        hidden = key > position
        if window is not None:
            hidden |= key <= position - window
        group.masks[window] = None
        if hidden.any():
            mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
            group.masks[window] = torch.from_numpy(mask).to(like.device, like.dtype)
    return group.masks[window]


def _gather(
    group: _Group,
    cache: torch.Tensor,
    batch: int,
    scale: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """[B, num_kv_heads, kv_len, head_dim] of a layer's cache. scale: of one in FP8."""
    rows = cache.index_select(0, group.blocks)
    if scale is not None:
        rows = dequantize_heads(rows, scale).to(dtype)
    if group.stale is not None:
        # A stale NaN would survive the mask: 0 * NaN is NaN.
        rows.view(-1, *cache.shape[2:]).index_fill_(0, group.stale, 0)
    return rows.view(batch, -1, *cache.shape[2:])[:, : group.kv_len].transpose(1, 2)


def partition(query_lens: Ints, seq_lens: Ints) -> list[Ints]:
    """Group sequences of like shape: as few groups as the cost of padding allows."""
    everyone = np.arange(len(query_lens))
    useful = int((seq_lens * (query_lens + _KEY_COST)).sum())
    if (
        _padded_cost(len(everyone), int(query_lens.max()), int(seq_lens.max()))
        <= useful + _GROUP_COST
    ):
        return [everyone]
    order = np.lexsort((seq_lens, query_lens))
    cuts = []
    size = query_len = kv_len = cost = 0
    shapes = zip(query_lens[order].tolist(), seq_lens[order].tolist(), strict=True)
    for i, (q, kv) in enumerate(shapes):
        size, query_len, kv_len = size + 1, max(query_len, q), max(kv_len, kv)
        grown, alone = _padded_cost(size, query_len, kv_len), _padded_cost(1, q, kv)
        if i > 0 and grown > cost + alone + _GROUP_COST:
            cuts.append(i)
            size, query_len, kv_len, grown = 1, q, kv, alone
        cost = grown
    return np.split(order, cuts) if cuts else [everyone]


def _padded_cost(num_sequences: int, query_len: int, kv_len: int) -> int:
    return num_sequences * kv_len * (query_len + _KEY_COST)
