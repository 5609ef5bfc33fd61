"""Drafting as CUDA graphs: all drafts of a step in one launch.

A graph first runs the network over a window of the last known tokens of each sequence. Those of
them that have keys already get the same keys again. Then it runs it ``k - 1`` times over the token
that it drafted last."""

from __future__ import annotations

from functools import partial

import torch

from engine.attention.base import CapturableBackend
from engine.layers.attention import KVCache, StepContext
from engine.runner.drafts.features import FeatureCache
from engine.runner.graphs.sized import (
    MAX_CHECKED,
    SizedGraphs,
    capture_all,
    capture_lengths,
    capture_sizes,
)
from engine.runner.graphs.static_inputs import SentRows, SequenceBuffers
from engine.runner.rows import Ints, RowTable
from engine.sampling.sampler import Sampler
from engine.spec.draft_network import ChainNetwork
from kernels import ops


class DraftGraphs:
    """Samples drafts without penalties, biases and masks, which are applied by the host's sampler:
    that only costs acceptance, as the target applies them."""

    def __init__(
        self,
        network: ChainNetwork,
        features: FeatureCache | None,
        kv_cache: KVCache,
        table: RowTable,
        sampler: Sampler,
        attention: CapturableBackend,
        *,
        num_drafts: int,
    ) -> None:
        assert num_drafts < attention.max_decode_queries
        self._network = network
        self._features = features
        self._kv_cache = kv_cache
        self._table = table
        self._sampler = sampler
        self._attention = attention
        self._block_size = block_size = kv_cache[0][0].shape[1]
        self.num_drafts = num_drafts
        """The most drafts of a sequence."""
        self.window = num_drafts + 1
        """Known tokens that a graph runs over: as many as a step can add."""
        sizes = capture_sizes(min(table.num_rows, MAX_CHECKED))
        self.max_batch = sizes[-1]
        self._sent = SentRows(sizes[-1], table.tokens.device)
        self._over_window = SequenceBuffers(table, block_size, sizes[-1], self.window)
        self._one_each = SequenceBuffers(table, block_size, sizes[-1], 1)
        self._graphs = {
            length: SizedGraphs(sizes, partial(self._forward, length), self.window)
            for length in capture_lengths(num_drafts)
        }

    def capture(self) -> None:
        """Record all graphs."""
        capture_all(list(self._graphs.values()), self._sent.pad)

    def run(self, rows: Ints, known: Ints, num_tokens: int) -> torch.Tensor:
        """Draft n tokens for each row, ``num_tokens <= n <= num_drafts``: [num_rows, n] int64,
        which the next run overwrites.

        known: tokens of each row, at least ``window``. All but the last ``window`` of them must
        have keys, and the row must have slots for ``num_drafts`` tokens behind them."""
        self._sampler.table()
        graphs = self._graphs[min(n for n in self._graphs if n >= min(num_tokens, self.num_drafts))]
        size = graphs.size_for(len(rows))
        self._sent.send(rows, known, size=size)
        return graphs.replay(size)[: len(rows)]

    def _forward(self, length: int, size: int) -> torch.Tensor:
        rows, known = self._sent.of(size)
        hidden = self._run(self._over_window, rows, known - self.window, self.window)
        hidden = hidden.view(size, self.window, -1)[:, -1].contiguous()
        drafts = [self._draw(hidden, rows, known)]
        for step in range(length - 1):
            fed_back = hidden[:, : self._network.feature_size]
            hidden = self._run(self._one_each, rows, known + step, 1, fed_back)
            drafts.append(self._draw(hidden, rows, known + step + 1))
        return torch.stack(drafts, 1)

    def _run(
        self,
        buffers: SequenceBuffers,
        rows: torch.Tensor,
        computed: torch.Tensor,
        num_queries: int,
        features: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the network over ``num_queries`` tokens of each row, from ``computed`` on. features:
        None to read them from the cache."""
        size = len(rows)
        buffers.look_up(rows, computed)
        token_ids, positions = buffers.tokens(size)
        if features is None and self._features is not None:
            token_rows = rows.long().repeat_interleave(num_queries)
            features = self._features.read(self._slots_before(token_rows, positions))
        elif features is None:
            features = torch.empty(0, device=token_ids.device)
        first = buffers.group_step(self._attention, size)
        step = StepContext(positions, [first], self._kv_cache)
        return self._network.hidden_states(token_ids, features, step)

    def _slots_before(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The slot of the position before each; -1 before the first position and for padding."""
        before = (positions - 1).clamp(min=0)
        blocks = self._table.block_table[rows.clamp(min=0), before // self._block_size].long()
        slots = blocks * self._block_size + before % self._block_size
        return slots.masked_fill((positions == 0) | (rows < 0), -1)

    def _draw(
        self, hidden: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        logits = self._network.logits(hidden)
        return ops.sample_rows(logits, self._sampler.table(), rows, positions, self._table.tokens)
