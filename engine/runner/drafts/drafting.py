"""Running a draft network beside the target: its features, its keys, its drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.base import AttentionBackend
from engine.layers.attention import StepContext
from engine.runner.drafts.drafted_slots import DraftedSlots
from engine.runner.drafts.feature_holes import FeatureHoles
from engine.runner.drafts.features import FeatureCache
from engine.runner.drafts.graphs import DraftGraphs
from engine.runner.drafts.row_changes import Changes, RowChanges
from engine.runner.inputs import ChunkFields, build_inputs
from engine.runner.memory import PagedCache
from engine.runner.rows import Ints, RowTable
from engine.sampling.sampler import Sampler
from engine.scheduler.plan import StepPlan
from engine.spec.draft_network import ChainNetwork, ParallelNetwork
from kernels.transfer import to_device

_WARM_UP_LENGTHS = 12, 24, 48, 160
"""Lengths of prompts, as in ``runner``."""


class Drafting(ABC):
    """Runs a draft network for the runner, with the runner's row table and sampler.

    Drafts are sampled like the target's tokens: with the request's parameters, and with the same
    noise of (seed, position). So both choose the same token as often as their distributions allow
    (see ``engine.spec.rejection``)."""

    num_lookahead_tokens: int = 0
    """Slots behind the known tokens of a request that the network writes to."""

    def __init__(
        self, features: FeatureCache | None, table: RowTable, sampler: Sampler, block_size: int
    ) -> None:
        self._features = features
        self._holes = FeatureHoles()
        self._changes = RowChanges(block_size)
        self._changed: Collection[int] = ()
        """Rows whose next chunk must not be missed."""
        self._table = table
        self._sampler = sampler
        self._block_size = block_size

    def apply(self, plan: StepPlan) -> None:
        """Follow a plan's changes to rows and blocks, before its forward pass. (The runner itself
        copies the contents of blocks.) While no drafts are made, they are only noted."""
        if self._holes.are_open and not (plan.keeps_features or self._changed):
            if plan.admissions or plan.new_blocks:
                self._changes.note(plan)
            return
        self._follow_changes()
        self._apply(plan)

    def _follow_changes(self) -> None:
        if not self._changes.is_empty:
            self._follow(self._changes.take())

    def _follow(self, changes: Changes) -> None:
        """Follow what was noted."""
        self._holes.follow(changes)

    def _apply(self, plan: StepPlan) -> None:
        """As ``apply``, now."""
        if self._features is not None:
            self._holes.apply(plan)

    def _fill_holes(self, asked: Sequence[tuple[int, int]]) -> None:
        """Write zeros in place of features that were not kept. asked: as for ``draft``."""
        self._follow_changes()
        holes = self._holes.take([row for row, _ in asked])
        if holes and self._features is not None:
            rows = [np.full(end - start, row) for row, start, end in holes]
            positions = [np.arange(start, end) for _, start, end in holes]
            self._features.clear(self._slots(np.concatenate(rows), np.concatenate(positions)))

    @abstractmethod
    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int
    ) -> list[list[int]] | torch.Tensor:
        """At most ``num_tokens`` drafts for each (row, number of known tokens). They are also
        written to the row table, at their positions.

        Returns token ids, or a tensor [len(asked), num_tokens] int64 on the device, which the next
        call overwrites, in stream order.
        """

    @abstractmethod
    def rehearse(self, batch: int, num_tokens: int) -> None:
        """Do the work of ``draft`` for ``batch`` requests, to be timed. Only before the first plan:
        it writes to rows and blocks that nobody holds yet."""

    def warm_up(self) -> None:
        """Do what drafting after a prompt does, because the first time takes longer. Only before
        the first plan."""
        self.rehearse(1, 1)

    def _draw(self, logits: torch.Tensor, rows: Ints, positions: Ints) -> torch.Tensor:
        """Sample drafts, and write them to the row table: [num_rows] int64. logits: [num_rows,
        vocab]."""
        return self._sampler.sample_into(self._table.tokens, logits, rows, positions, None)

    def _slots(self, rows: Ints, positions: Ints) -> torch.Tensor:
        """The slots of these positions: [n] int64 on the device; -1 for position -1."""
        at = to_device(np.stack((rows, positions)), self._table.tokens.device)
        blocks = self._table.block_table[at[0], at[1].clamp(min=0) // self._block_size].long()
        slots = blocks * self._block_size + at[1] % self._block_size
        return slots.masked_fill(at[1] < 0, -1)


class ParallelDrafting(Drafting):
    """Medusa: all drafts at once, from the feature of the last token that was computed."""

    def __init__(
        self,
        network: ParallelNetwork,
        features: FeatureCache,
        table: RowTable,
        sampler: Sampler,
        block_size: int,
    ) -> None:
        super().__init__(features, table, sampler, block_size)
        self._network = network

    def draft(self, asked: Sequence[tuple[int, int]], num_tokens: int) -> torch.Tensor:
        rows, known = np.array(asked, np.int64).T
        assert self._features is not None
        self._fill_holes(asked)
        features = self._features.read(self._slots(rows, known - 2))
        drawn = []
        limit = self._table.tokens.shape[1]
        for index, logits in enumerate(self._network.all_logits(features)[:num_tokens]):
            positions = np.minimum(known + index, limit - 1)
            drawn.append(self._draw(logits, rows, positions))
        return torch.stack(drawn, 1)

    def rehearse(self, batch: int, num_tokens: int) -> None:
        self.draft([(row, 2) for row in range(batch)], num_tokens)


class ChainDrafting(Drafting):
    """EAGLE heads and draft models: token after token, with a KV cache of their own.

    The features of all tokens that the target has computed are at hand. So the network computes its
    keys late, when drafts are asked for, for all tokens since the last time (``_catch_up``). Steps
    without drafts take no time for the network.
    """

    def __init__(
        self,
        network: ChainNetwork,
        features: FeatureCache | None,
        attention: AttentionBackend,
        cache: PagedCache,
        table: RowTable,
        sampler: Sampler,
        block_size: int,
        graphs: DraftGraphs | None = None,
        *,
        max_num_tokens: int,
        num_lookahead_tokens: int,
    ) -> None:
        """max_num_tokens: the most tokens of one pass, when catching up with known tokens."""
        super().__init__(features, table, sampler, block_size)
        self.num_lookahead_tokens = num_lookahead_tokens
        self._network = network
        self._attention = attention
        self._cache = cache
        self._graphs = graphs
        self._max_num_tokens = max_num_tokens
        self._drafted = DraftedSlots(cache.num_blocks, block_size, table)
        self._changed = self._drafted.changed

    def _follow(self, changes: Changes) -> None:
        super()._follow(changes)
        self._drafted.follow(changes)

    def _apply(self, plan: StepPlan) -> None:
        super()._apply(plan)
        self._drafted.apply(plan)

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int
    ) -> list[list[int]] | torch.Tensor:
        self._fill_holes(asked)
        if self._graphs is not None and num_tokens and self._all_fit(self._graphs, asked):
            rows, known = np.array(asked, np.int64).T
            return self._replay(self._graphs, rows, known, num_tokens)
        drafts: list[list[int]] = [[] for _ in asked]
        # The last known token needs a slot, where the network writes its key.
        able = [i for i, (row, known) in enumerate(asked) if self._drafted.room(row) >= known]
        if not able or num_tokens == 0:
            return drafts
        rows, known = np.array([asked[i] for i in able], np.int64).T
        members = np.array(able)
        rest = np.ones(len(rows), np.bool_)
        if self._graphs is not None:
            rest = ~self._fits(self._graphs, rows, known)
            if not rest.all():
                found = self._replay(self._graphs, rows[~rest], known[~rest], num_tokens)
                for index, draft in zip(members[~rest].tolist(), found.tolist(), strict=True):
                    drafts[index] = draft
        if rest.any():
            for index, token_id in self._chain(members[rest], rows[rest], known[rest], num_tokens):
                drafts[index].append(token_id)
        return drafts

    def rehearse(self, batch: int, num_tokens: int) -> None:
        rows, ones = np.arange(batch), np.ones(batch, np.int64)
        limit = self._table.tokens.shape[1] - num_tokens
        graphs = self._graphs
        if graphs is not None and batch <= graphs.max_batch and graphs.window < limit:
            graphs.run(rows, ones * graphs.window, num_tokens)
            return
        hidden: torch.Tensor | None = None
        for place in range(min(num_tokens, limit)):
            if hidden is not None:
                hidden = hidden[:, : self._network.feature_size]
            elif self._features is not None:
                hidden = self._features.read(self._slots(rows, ones * -1))
            hidden = self._run(ChunkFields(rows, ones * place, ones, ones), hidden)
            drawn = self._draw(self._network.logits(hidden), rows, ones * (place + 1))
            drawn.tolist()

    def warm_up(self) -> None:
        on_gpu = self._table.tokens.is_cuda
        for length in _WARM_UP_LENGTHS if on_gpu else _WARM_UP_LENGTHS[:1]:
            num_tokens = min(length, self._table.tokens.shape[1] - 1)
            one, lens = np.zeros(1, np.int64), np.full(1, num_tokens)
            features: torch.Tensor | None = None
            if self._features is not None:
                nothing = np.full(num_tokens, -1)
                features = self._features.read(self._slots(one.repeat(num_tokens), nothing))
            hidden = self._run(ChunkFields(one, one, lens, one + 1), features)
            self._draw(self._network.logits(hidden[-1:]), one, lens).tolist()

    def _chain(
        self, members: Ints, rows: Ints, known: Ints, num_tokens: int
    ) -> list[tuple[int, int]]:
        """Draft without a graph. Returns (member, draft) pairs; the drafts of a member are in their
        order. members: indices into what ``draft`` was asked."""
        hidden = self._catch_up(rows, known)
        drawn = [self._draw(self._network.logits(hidden), rows, known)]
        drafted_by = [members]
        room = self._room(rows)
        for step in range(num_tokens - 1):
            kept = np.flatnonzero(known + step < room)
            if len(kept) == 0:
                break
            if len(kept) < len(rows):
                hidden = hidden[to_device(kept, hidden.device)]
                members, rows, known, room = members[kept], rows[kept], known[kept], room[kept]
            ones = np.ones(len(rows), np.int64)
            fields = ChunkFields(rows, known + step, ones, ones)
            hidden = self._run(fields, hidden[:, : self._network.feature_size])
            drawn.append(self._draw(self._network.logits(hidden), rows, known + step + 1))
            drafted_by.append(members)
        values = torch.cat(drawn).tolist()
        return list(zip(np.concatenate(drafted_by).tolist(), values, strict=True))

    def _room(self, rows: Ints) -> Ints:
        """[num_rows]: after how many leading tokens of each row the network can draft."""
        # A token needs a slot for its key, and the table needs room for the draft behind it.
        width = self._table.tokens.shape[1]
        return np.array([min(self._drafted.room(row), width - 1) for row in rows.tolist()])

    def _all_fit(self, graphs: DraftGraphs, asked: Sequence[tuple[int, int]]) -> bool:
        """Whether ``_fits`` holds for all requests. Faster, and enough for most steps."""
        room, limit, ahead = self._drafted.room, self._table.tokens.shape[1] - 1, graphs.num_drafts
        return len(asked) <= graphs.max_batch and all(
            known >= graphs.window and known + ahead - 1 <= min(room(row), limit)
            for row, known in asked
        )

    def _fits(self, graphs: DraftGraphs, rows: Ints, known: Ints) -> npt.NDArray[np.bool_]:
        """[num_rows]: which of the rows a graph can draft for."""
        enough = known + graphs.num_drafts - 1 <= self._room(rows)
        fits: npt.NDArray[np.bool_] = (
            enough & (known >= graphs.window) & (len(rows) <= graphs.max_batch)
        )
        return fits

    def _replay(
        self, graphs: DraftGraphs, rows: Ints, known: Ints, num_tokens: int
    ) -> torch.Tensor:
        start, window = self._drafted.start, graphs.window
        places = enumerate(zip(rows.tolist(), known.tolist(), strict=True))
        behind = [index for index, (row, end) in places if start(row) < end - window]
        if behind:
            self._catch_up(rows[behind], known[behind])
        self._drafted.fill(rows, known)
        return graphs.run(rows, known, num_tokens)[:, :num_tokens]

    def _catch_up(self, rows: Ints, known: Ints) -> torch.Tensor:
        """Run the network over the known tokens that lack keys, and in any case over the last one.
        Returns its output at the last known token of each row: [num_rows, n]."""
        starts = np.array([self._drafted.start(row) for row in rows.tolist()])
        starts = np.minimum(starts, known - 1)
        found: list[torch.Tensor | None] = [None] * len(rows)
        while True:
            ends = self._within_budget(starts, known)
            busy = np.flatnonzero(ends > starts)
            if len(busy) == 0:
                break
            lens = (ends - starts)[busy]
            fields = ChunkFields(rows[busy], starts[busy], lens, np.ones(len(busy), np.int64))
            token_rows = rows[busy].repeat(lens)
            offsets = np.arange(lens.sum()) - (lens.cumsum() - lens).repeat(lens)
            features = None
            if self._features is not None:
                before = starts[busy].repeat(lens) + offsets - 1
                features = self._features.read(self._slots(token_rows, before))
            hidden = self._run(fields, features)
            if len(busy) == len(rows) and (ends == known).all():
                last = to_device(lens.cumsum() - 1, hidden.device)
                self._drafted.fill(rows, known)
                return hidden.index_select(0, last)
            for place, index in zip((lens.cumsum() - 1).tolist(), busy.tolist(), strict=True):
                found[index] = hidden[place]
            starts = ends
        self._drafted.fill(rows, known)
        return torch.stack([last for last in found if last is not None])

    def _within_budget(self, starts: Ints, known: Ints) -> Ints:
        """[num_rows]: up to which token each row gets in one pass."""
        lacking = known - starts
        left = np.maximum(self._max_num_tokens - (lacking.cumsum() - lacking), 0)
        ends: Ints = starts + np.minimum(lacking, left)
        return ends

    def _run(self, fields: ChunkFields, features: torch.Tensor | None) -> torch.Tensor:
        inputs = build_inputs(fields, self._table, self._block_size)
        first = inputs.groups[0].prepared(self._attention, self._block_size)
        step = StepContext(inputs.positions, [first], self._cache.layers)
        if features is None:
            features = torch.empty(0, device=inputs.token_ids.device)
        return self._network.hidden_states(inputs.token_ids, features, step)
