"""The persistent state of running requests: one row each of known tokens and block ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.groups import LayerGroups
from engine.scheduler.plan import UNSEEN, Admission, Chunk
from kernels.transfer import put, write

Ints = npt.NDArray[np.int64]


class RowTable:
    """Both tables live on the device, so that a step needs only row numbers from the host."""

    def __init__(
        self,
        max_num_rows: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        groups: LayerGroups | None = None,
    ) -> None:
        """groups: the layer groups, each of which has a block table; None for a single one."""
        self.group_of = () if groups is None else tuple(group for group, _ in groups.places)
        """The layer group of each layer; empty where there is only one."""
        self.windows = (None,) if groups is None else groups.windows
        """Window of each layer group."""
        max_blocks = -(-max_model_len // block_size)
        shape = len(self.windows), max_num_rows, max_blocks
        self.tokens = torch.zeros(max_num_rows, max_model_len, dtype=torch.int64, device=device)
        """[max_num_rows, max_model_len] int64: the known token ids."""
        self._flat_tokens = self.tokens.view(-1)
        self.block_tables = torch.zeros(shape, dtype=torch.int32, device=device)
        """[num_groups, max_num_rows, max_blocks] int32"""
        self.block_table = self.block_tables[0]
        """[max_num_rows, max_blocks] int32: the first group's, usually the only one."""
        self._host_tables = np.zeros(shape, np.int32)
        self.block_ids = self._host_tables[0]
        """The first group's block table, on the host."""
        self.num_admissions = 0
        """Counts admissions: as long as it stays the same, rows begin with the same blocks."""
        self._num_blocks = [[0] * max_num_rows for _ in self.windows]

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def num_blocks(self, row: int) -> int:
        """Of the first group."""
        return self._num_blocks[0][row]

    def blocks(self, row: int) -> list[int]:
        """The row's block ids of the first group."""
        found: list[int] = self.block_ids[row, : self._num_blocks[0][row]].tolist()
        return found

    def admit(self, admission: Admission) -> None:
        self.apply([admission], [])

    def apply(
        self,
        admissions: Sequence[Admission],
        new_blocks: Sequence[tuple[int, int, Sequence[int]]],
    ) -> None:
        """Take in what is new in a plan."""
        if admissions:
            self._write_tokens(admissions)
        for admission in admissions:
            for num_blocks in self._num_blocks:
                num_blocks[admission.row] = 0
        self.num_admissions += len(admissions)
        new = [
            (group, admission.row, block_ids)
            for admission in admissions
            for group, block_ids in enumerate(admission.block_ids)
        ]
        new += new_blocks
        places: list[int] = []
        ids: list[int] = []
        _, max_num_rows, width = self.block_tables.shape
        for group, row, block_ids in new:
            start = self._num_blocks[group][row]
            self._num_blocks[group][row] = end = start + len(block_ids)
            first = (group * max_num_rows + row) * width
            places += range(first + start, first + end)
            ids += block_ids
        if ids:
            found = np.maximum(np.array((places, ids), np.int64), 0)  # NO_BLOCK is below
            self._host_tables.reshape(-1)[found[0]] = found[1]
            _put(self.block_tables, found, is_run=len(new) == 1)

    def _write_tokens(self, admissions: Sequence[Admission]) -> None:
        """In one copy: each costs the host more than the tokens of a prompt."""
        width = self.tokens.shape[1]
        starts = [admission.row * width for admission in admissions]
        places = [
            np.arange(start, start + len(admission.token_ids))
            for start, admission in zip(starts, admissions, strict=True)
        ]
        ids = [np.array(admission.token_ids, np.int64) for admission in admissions]
        found = np.stack((np.concatenate(places), np.concatenate(ids)))
        _put(self.tokens, found, is_run=len(admissions) == 1)

    def write_drafts(self, chunks: Sequence[Chunk]) -> None:
        """Write the chunks' drafts after the known tokens. Drafts that the host has not seen are
        there already."""
        width = self.tokens.shape[1]
        runs: list[tuple[int, tuple[int, ...]]] = []
        for chunk in chunks:
            drafts = chunk.draft_token_ids
            if drafts and drafts[0] != UNSEEN:
                end = chunk.row * width + chunk.num_computed_tokens + chunk.num_scheduled_tokens
                runs.append((end - len(drafts), drafts))
        if len(runs) == 1:
            first, drafts = runs[0]
            write(self._flat_tokens[first : first + len(drafts)], np.array(drafts, np.int64))
        elif runs:
            places = [place for first, ids in runs for place in range(first, first + len(ids))]
            found = places, [token_id for _, ids in runs for token_id in ids]
            _put(self.tokens, np.array(found, np.int64), is_run=False)


def _put(table: torch.Tensor, found: Ints, *, is_run: bool) -> None:
    """found: [2, n], places in the flat table and what belongs there. is_run: the places follow
    each other, so that one copy to them does: a lone request waits for each call on the way to its
    first token."""
    flat = table.view(-1)
    if is_run:
        first = int(found[0, 0])
        run = flat[first : first + found.shape[1]]
        write(run, found[1].astype(np.int32) if flat.dtype == torch.int32 else found[1])
        return
    put(table, found)
