"""Paged attention in plain torch: gather the blocks, then one fused attention call per group.

Sequences of a step are padded to common lengths in as few groups as the padding is worth: a decode
batch is usually one group, a long prompt chunk a group of its own.

    group of B sequences     queries [B, q_len]          keys [B, kv_len]
    sequence i               0 .. n_i-1 | repeats last   0 .. seq_len_i-1 | zeroed, masked
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from engine.attention.base import AttentionBatch

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
    mask: torch.Tensor | None
    """[B, 1, query_len, kv_len], 0 or -inf; None: nothing to hide (or ``causal``)."""


class TorchAttention:
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
            groups = _partition(batch.query_lens, batch.seq_lens)
        else:
            within = _partition(batch.query_lens[members], batch.seq_lens[members])
            groups = [members[group] for group in within]
        first_tokens = np.cumsum(batch.query_lens) - batch.query_lens
        return TorchStepAttention(
            [self._build(batch, group, first_tokens, block_size) for group in groups]
        )

    def _build(
        self, batch: AttentionBatch, members: Ints, first_tokens: Ints, block_size: int
    ) -> _Group:
        query_lens, seq_lens = batch.query_lens[members], batch.seq_lens[members]
        query_len, kv_len = int(query_lens.max()), int(seq_lens.max())
        num_blocks = -(-kv_len // block_size)
        whole = len(members) == len(batch.query_lens)  # Then they are in their order.
        table = batch.block_table[:, :num_blocks][self._tensor(batch.rows[members])]
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
            mask=None if causal else self._mask(query_lens, seq_lens, query_len, kv_len),
        )

    def _mask(
        self, query_lens: Ints, seq_lens: Ints, query_len: int, kv_len: int
    ) -> torch.Tensor | None:
        # The position of padded query j; those past the last real one see what the last sees.
        offsets = np.minimum(np.arange(query_len), query_lens[:, None] - 1)
        last_visible = (seq_lens - query_lens)[:, None] + offsets
        future = np.arange(kv_len) > last_visible[:, None, :, None]
        if not future.any():
            return None
        mask = np.where(future, np.float32(-np.inf), np.float32(0))
        return self._tensor(mask).to(self.dtype)

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class TorchStepAttention:
    groups: list[_Group]

    def __call__(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float
    ) -> torch.Tensor:
        if self.groups[0].token_index is None:
            return _attend(self.groups[0], q, k_cache, v_cache, scale)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.attend_into(out, q, k_cache, v_cache, scale)
        return out

    def attend_into(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
    ) -> None:
        """Write the tokens of the groups, and no others."""
        for group in self.groups:
            assert group.token_index is not None
            assert group.out_tokens is not None
            attended = _attend(group, q[group.token_index], k_cache, v_cache, scale)
            if group.out_rows is not None:
                attended = attended[group.out_rows]
            out.index_copy_(0, group.out_tokens, attended)


def _attend(
    group: _Group, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float
) -> torch.Tensor:
    """q, result: [B * query_len, num_q_heads, head_dim]."""
    grouped = q.reshape(-1, group.query_len, *q.shape[1:]).transpose(1, 2)
    out = F.scaled_dot_product_attention(
        grouped,
        _gather(group, k_cache, grouped.shape[0]),
        _gather(group, v_cache, grouped.shape[0]),
        attn_mask=group.mask,
        is_causal=group.causal,
        scale=scale,
        enable_gqa=True,
    )
    return out.transpose(1, 2).reshape(q.shape)


def _gather(group: _Group, cache: torch.Tensor, batch: int) -> torch.Tensor:
    """[B, num_kv_heads, kv_len, head_dim] of a layer's cache."""
    rows = cache.index_select(0, group.blocks)
    if group.stale is not None:
        # A stale NaN would survive the mask: 0 * NaN is NaN.
        rows.view(-1, *cache.shape[2:]).index_fill_(0, group.stale, 0)
    return rows.view(batch, -1, *cache.shape[2:])[:, : group.kv_len].transpose(1, 2)


def _partition(query_lens: Ints, seq_lens: Ints) -> list[Ints]:
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
