"""Sends the work on shared prefixes to the device, where the decode graphs read it."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionShape
from engine.runner.graphs.shared_prefix import (
    MAX_SPLITS,
    MIN_SAVED_TOKENS,
    Group,
    Layout,
    find_groups,
)
from engine.runner.inputs import ChunkFields
from engine.runner.rows import RowTable
from kernels import cuda

_MAX_PARTIAL_ROWS = 2048
"""Partial results kept at once, unless the batch is larger: [rows, num_heads, head_dim] float32."""
_MAX_TILES = 512


class SharedInputs:
    """Device memory for the work of one step; graphs of any size read the same."""

    def __init__(self, table: RowTable, shape: AttentionShape) -> None:
        self._table = table
        self._shape = shape
        device = table.tokens.device
        self._sms = torch.cuda.get_device_properties(device).multi_processor_count
        self._members_per_tile = cuda.PREFILL_ROWS // (shape.num_heads // shape.num_kv_heads)
        largest = shape.max_num_seqs
        self._sent = torch.zeros(self._layout(largest).size, dtype=torch.int32, device=device)
        self._host = torch.zeros(self._sent.shape, dtype=torch.int32, pin_memory=True)
        rows = max(_MAX_PARTIAL_ROWS, largest)
        sizes = (rows, shape.num_heads, shape.head_dim)
        self._partial_out = torch.empty(sizes, dtype=torch.float32, device=device)
        self._partial_stats = torch.empty(*sizes[:2], 2, dtype=torch.float32, device=device)
        self._found_for: tuple[int, bytes] | None = None
        self._groups: list[Group] = []
        self._sent_for: tuple[int, int, bytes] | None = None
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def find(self, fields: ChunkFields) -> bool:
        """Whether a decode step has prefixes worth sharing; ``send`` then sends what was found."""
        key = self._table.num_admissions, fields.rows.tobytes()
        if key != self._found_for:
            ids = self._table.block_ids[fields.rows]
            whole = fields.computed // self._shape.block_size
            # Cut after the longest table: comparing padding costs time.
            groups = find_groups(ids[:, : whole.max()], whole, self._shape.block_size)
            saved = sum((len(group.members) - 1) * group.num_tokens for group in groups)
            self._groups = groups if saved >= MIN_SAVED_TOKENS else []
            self._found_for = key
        return bool(self._groups)

    def send(self, size: int) -> None:
        """Send what ``find`` found to the device, for the graph of ``size`` sequences."""
        assert self._found_for is not None
        key = size, *self._found_for
        if key == self._sent_for:
            return
        layout = self._layout(size)
        self._arrived.synchronize()  # the last copy has read the host's memory
        layout.fill(
            self._host.numpy()[: layout.size],
            self._groups,
            self._members_per_tile,
            self._shape.num_kv_heads,
            self._sms,
        )
        self._sent[: layout.size].copy_(self._host[: layout.size], non_blocking=True)
        self._arrived.record()
        self._sent_for = key

    def on_device(self, size: int) -> cuda.SharedPrefixes:
        """Where a graph of ``size`` sequences reads its work; no groups until ``send``."""
        layout = self._layout(size)
        tiles, tile_splits, skipped, splits, members, num_tiles = (
            self._sent[part] for part in layout.parts()
        )
        rows = layout.max_splits * size
        return cuda.SharedPrefixes(
            skipped=skipped,
            splits=splits,
            members=members,
            num_tiles=num_tiles,
            tiles=tiles.view(-1, 4),
            tile_splits=tile_splits,
            partial_out=self._partial_out[:rows],
            partial_stats=self._partial_stats[:rows],
        )

    @staticmethod
    def _layout(size: int) -> Layout:
        splits = max(1, min(MAX_SPLITS, _MAX_PARTIAL_ROWS // size))
        return Layout(size, max(_MAX_TILES, size), splits)
