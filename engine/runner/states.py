"""The states of layers that keep one for each sequence, in place of keys and values.

A running request's state is in the slot of its row. Behind the rows come one slot for the padding
of graphs, and the snapshots: states of prefixes, for requests that continue these::

    slots    [ row 0 | row 1 | ... | padding | snapshot 0 | snapshot 1 | ... ]

A slot holds the states of all such layers, so that one copy takes a snapshot or goes back to it.
Where a state is to be kept from the middle of a chunk, the layers compute the chunk as two runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.layers.recurrent import Run, States, StateStep
from engine.models.base import RecurrentLayers
from engine.runner.inputs import ChunkFields
from kernels.transfer import to_device

MAX_DEFAULT_BYTES = 4 * 1024 * 1024 * 1024
"""Of snapshots, where the config names no number."""
MAX_DEFAULT_CPU_BYTES = 256 * 1024 * 1024
_ALIGNMENT = 16
"""Bytes, so that every layer's tensors can be read as any dtype."""

Saves = Sequence[tuple[int, int, int]]
"""``StepPlan.state_saves``"""


class StateCache:
    """The memory of all slots, and each layer's view of it."""

    def __init__(
        self,
        recurrent: RecurrentLayers,
        num_rows: int,
        num_snapshots: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """dtype: the model's."""
        self.num_snapshots = num_snapshots
        self._padding = num_rows
        num_slots = num_rows + 1 + num_snapshots
        self.memory = torch.zeros(
            num_slots, slot_bytes(recurrent, dtype), dtype=torch.uint8, device=device
        )
        """[num_slots, bytes of a slot]"""
        self.layers: list[States] = []
        start = 0
        for _ in recurrent.layers:
            tensors = []
            for shape, own_dtype in recurrent.config.state:
                kind = own_dtype or dtype
                size = int(np.prod(shape)) * kind.itemsize
                part = self.memory[:, start : start + size].view(kind)
                tensors.append(part.view(num_slots, *shape))
                start += -(-size // _ALIGNMENT) * _ALIGNMENT
            self.layers.append(tuple(tensors))

    def _snapshot(self, number: int) -> int:
        return self._padding + 1 + number

    def load(self, loads: Sequence[tuple[int, int]]) -> None:
        """loads: (snapshot, row), before the row's next tokens."""
        for snapshot, row in loads:
            self.memory[row].copy_(self.memory[self._snapshot(snapshot)])

    def save_ends(self, fields: ChunkFields, saves: Saves) -> None:
        """After a step: keep what is to be kept at the ends of its chunks."""
        if saves:
            ends = dict(zip(fields.rows.tolist(), _ends(fields), strict=True))
            for row, num_tokens, snapshot in saves:
                if ends[row] == num_tokens:
                    self.memory[self._snapshot(snapshot)].copy_(self.memory[row])

    def step(self, fields: ChunkFields, saves: Saves = ()) -> StateStep:
        """A step that is not in a graph. saves: those in the middle of chunks are kept by it."""
        device = self.memory.device
        rows, computed = fields.rows, fields.computed
        starts, is_single = fields.query_lens.cumsum() - fields.query_lens, fields.query_lens == 1
        alone = np.stack((rows, computed, starts))[:, is_single]
        nothing = torch.empty(3, 0, dtype=torch.int64, device=device)
        slots, done, single = to_device(alone, device) if alone.size else nothing
        if is_single.all():
            return StateStep(self.layers, slots, done == 0)
        runs: list[Run] = []
        columns = zip(rows.tolist(), computed.tolist(), starts.tolist(), _ends(fields), strict=True)
        for (row, before, start, end), has_one in zip(columns, is_single.tolist(), strict=True):
            if has_one:
                continue
            source = row if before else None
            for place, num_tokens, snapshot in sorted(saves):
                if place == row and num_tokens < end:
                    target, stop = self._snapshot(snapshot), start + num_tokens - before
                    runs.append(Run(start, stop, source, target))
                    source, start, before = target, stop, num_tokens
            runs.append(Run(start, start + end - before, source, row))
        return StateStep(self.layers, slots, done == 0, single, runs)

    def graph_step(self, rows: torch.Tensor, positions: torch.Tensor) -> StateStep:
        """A step of one token each, in a graph. rows: [size] int32, -1 for padding; positions:
        [size] int64."""
        slots = torch.where(rows < 0, self._padding, rows).long()
        return StateStep(self.layers, slots, positions == 0)


def create_states(
    config: EngineConfig, recurrent: RecurrentLayers, *, dtype: torch.dtype, device: torch.device
) -> StateCache:
    """For as many rows and snapshots as the config says. Raises ``ConfigError`` if they do not fit
    in a GPU's memory."""
    num_snapshots, size = config.num_state_snapshots, slot_bytes(recurrent, dtype)
    if num_snapshots is None:
        num_snapshots = num_default_snapshots(config.num_seqs, size, device)
    needed = (config.num_seqs + 1 + num_snapshots) * size
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else needed
    if needed > free:
        raise ConfigError(
            f"the recurrent states of {config.num_seqs} requests and {num_snapshots} snapshots "
            f"take {needed} bytes, and {free} are free: lower max_num_seqs or num_state_snapshots"
        )
    return StateCache(recurrent, config.num_seqs, num_snapshots, dtype=dtype, device=device)


def num_default_rows(num_rows: int, size: int, memory_bytes: int) -> int:
    """How many requests run at once where the config names no number: ``num_rows`` as for other
    models, unless their states would take more than a quarter of a GPU's memory. size: of a slot;
    memory_bytes: all memory of a GPU, 0 for a CPU."""
    return max(1, min(num_rows, (memory_bytes // 4 or MAX_DEFAULT_CPU_BYTES) // size))


def num_default_snapshots(num_rows: int, size: int, device: torch.device) -> int:
    """How many snapshots there are where the config names no number. size: of a slot."""
    most = MAX_DEFAULT_BYTES if device.type == "cuda" else MAX_DEFAULT_CPU_BYTES
    return max(1, min(2 * num_rows, most // size))


def _ends(fields: ChunkFields) -> list[int]:
    ends: list[int] = (fields.computed + fields.query_lens).tolist()
    return ends


def slot_bytes(recurrent: RecurrentLayers, dtype: torch.dtype) -> int:
    """What one slot takes. dtype: the model's."""
    sizes = (
        int(np.prod(shape)) * (own_dtype or dtype).itemsize
        for shape, own_dtype in recurrent.config.state
    )
    return len(recurrent.layers) * sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
