"""Which part of an adapter's matrices each of several ranks keeps: the inputs and outputs that its
part of the model's layers has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.layers.module import Module
from engine.lora.adapter import Adapter, LoraPair
from engine.lora.target_modules import find_target_modules
from engine.parallel.group import Group
from engine.weights.shards import shard_of


class AdapterShards:
    def __init__(self, model: Module, whole: Module, group: Group, *, pin: bool) -> None:
        """model: of one of the group's ranks. whole: the same model of a rank alone. pin: keep the
        parts in pinned memory."""
        self.modules = find_target_modules(whole)
        """Of the whole model: what adapters are checked against."""
        self._pin = pin
        self._rows: dict[str, Sequence[slice]] = {}
        self._columns: dict[str, Sequence[slice]] = {}
        self._ours = find_target_modules(model)
        for name, ours in self._ours.items():
            full = self.modules[name]
            if full.out_features != ours.out_features:
                sizes = full.out_features, ours.out_features
                parts = full.linear.sections or sizes[:1], ours.linear.sections or sizes[1:]
                self._rows[name] = shard_of(name, 0, sizes, parts, group).ranges
            if full.in_features != ours.in_features:
                sizes = full.in_features, ours.in_features
                parts = sizes[:1], sizes[1:]
                self._columns[name] = shard_of(name, 1, sizes, parts, group).ranges

    def of(self, adapter: Adapter) -> Adapter:
        """This rank's part."""
        pairs = {
            name: LoraPair(
                self._kept(pair.down, self._columns.get(name), 1),
                self._kept(pair.up, self._rows.get(name), 0),
            )
            for name, pair in adapter.pairs.items()
            if name in self._ours
        }
        return replace(adapter, pairs=pairs)

    def _kept(self, matrix: torch.Tensor, ranges: Sequence[slice] | None, dim: int) -> torch.Tensor:
        if ranges is not None:
            parts = [matrix.narrow(dim, part.start, part.stop - part.start) for part in ranges]
            matrix = torch.cat(parts, dim).contiguous()
        return matrix.pin_memory() if self._pin and not matrix.is_pinned() else matrix
