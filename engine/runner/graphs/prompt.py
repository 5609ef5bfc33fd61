"""CUDA graphs for steps whose only chunk ends a short prompt.

Such a step decides how soon a lone request gets its first token, and to launch its kernels one by
one takes the host longer than they run. A prompt runs in the graph of the next larger number of
tokens. It is padded at its end with tokens that are stored in no slot, and whose results are
dropped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.attention.base import DeviceBatch, PromptBackend
from engine.executors.base import Executor
from engine.layers.attention import GroupStep, KVCache, StepContext, Wanted
from engine.lora.slots import AdapterSlots, captured
from engine.runner.graphs.sized import SizedGraphs, capture_all
from engine.runner.inputs import ChunkFields, SampledTokens
from engine.runner.rows import RowTable
from engine.sampling.sampler import DeviceRows
from kernels import cuda
from kernels.transfer import write

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIZES = (16, 32, 64, 128, 192, 256, 384)
"""Numbers of tokens. For more than the last, the kernels run longer than it takes to launch them.
Consecutive sizes differ by at most 128, as ``PromptBackend.prepare_prompt`` demands."""
MAX_TOKENS = _SIZES[-1]
_NUM_SEQS = 2
"""The prompt, and a sequence of the padding tokens."""


def prompt_sizes(max_num_tokens: int) -> list[int]:
    """Numbers of tokens worth a graph."""
    return [size for size in _SIZES if size <= max_num_tokens]


class PromptGraphs:
    """Graphs by number of tokens; prompts with an adapter have graphs of their own."""

    def __init__(
        self,
        executor: Executor,
        kv_cache: KVCache,
        table: RowTable,
        attention: PromptBackend,
        adapters: AdapterSlots | None = None,
        *,
        sizes: Sequence[int],
    ) -> None:
        """adapters: if any, they are capturable. sizes: numbers of tokens, ascending, not empty, at
        most ``MAX_TOKENS``; no row of the table is shorter."""
        assert len(table.windows) == 1, "the layers of one group share slots and block tables"
        self._executor = executor
        self._kv_cache = kv_cache
        self._table = table
        self._attention = attention
        self._block_size = kv_cache[0][0].shape[1]
        self.max_num_tokens = sizes[-1]
        device = table.tokens.device
        self._sent = torch.zeros(3 * _NUM_SEQS + 1, dtype=torch.int32, device=device)
        self._tokens = torch.zeros(3, sizes[-1], dtype=torch.int64, device=device)
        """Token ids, positions, slots."""
        self._batch = DeviceBatch(
            torch.zeros(_NUM_SEQS, dtype=torch.int32, device=device),
            self._sent[2 * _NUM_SEQS :],
            table.block_table.new_zeros(_NUM_SEQS, table.block_table.shape[1]),
        )
        self._adapters = adapters
        self._families = {
            adapted: SizedGraphs(sizes, partial(self._forward, adapted=adapted))
            for adapted in ((False,) if adapters is None else (False, True))
        }
        """By whether the prompt has an adapter."""

    def capture(self) -> None:
        """Record all graphs. Call it before any request has a row: the runs before the recording
        write to blocks."""
        families = list(self._families.values())
        capture_all(families, lambda size: self._send(0, 0, size, size=size))

    def fits(self, fields: ChunkFields, *, adapted: bool = False) -> bool:
        """Whether ``run`` can execute a step, unless log-probabilities of its prompt are asked for.
        adapted: some rows have an adapter."""
        return bool(
            len(fields.rows) == 1
            and fields.num_sampled[0] == 1
            and 1 < fields.query_lens[0] <= self.max_num_tokens
            and adapted in self._families
        )

    def run(
        self, fields: ChunkFields, *, adapted: bool = False
    ) -> tuple[SampledTokens, torch.Tensor]:
        """Execute a step that ``fits``: what is sampled, and its logits [1, vocab].

        Both live in memory that the next ``run`` overwrites, in stream order.
        """
        num_tokens = int(fields.query_lens[0])
        family = self._families[adapted]
        size = family.size_for(num_tokens)
        if self._adapters is not None and adapted:
            self._adapters.send(fields.rows, size, num_tokens)
        self._send(int(fields.rows[0]), int(fields.computed[0]), num_tokens, size=size)
        logits = family.replay(size)
        on_device = DeviceRows(self._sent[:1], self._batch.seq_lens[:1])
        return SampledTokens.of(fields, on_device), logits

    def _send(self, row: int, computed: int, num_tokens: int, *, size: int) -> None:
        """Send the rows of both sequences (-1: padding), their computed tokens, and the prefix sums
        of their tokens in this step."""
        values = [row, -1, computed, 0, 0, num_tokens, size]
        write(self._sent, np.array(values, np.int32))

    def _forward(self, size: int, *, adapted: bool) -> torch.Tensor:
        rows, computed = self._sent[: 2 * _NUM_SEQS].view(2, _NUM_SEQS).unbind()
        token_ids, positions, slots = self._tokens[:, :size]
        batch = self._batch
        cuda.native.step_inputs(
            self._table.tokens,
            self._table.block_table,
            rows,
            computed,
            cu_queries=batch.cu_queries,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            seq_lens=batch.seq_lens,
            batch_table=batch.block_table,
            block_size=self._block_size,
        )
        last = batch.cu_queries[1:2].long() - 1
        step = StepContext(
            positions,
            [GroupStep(slots, self._attention.prepare_prompt(batch, size))],
            self._kv_cache,
            adapted=adapted,
            # Adapters are sent for all tokens, so the last layer must compute all of them.
            wanted=None if adapted else Wanted(last),
        )
        with captured(self._adapters if adapted else None, size):
            hidden = self._executor.hidden_states(token_ids, step)
        return self._executor.logits(hidden.index_select(0, last) if adapted else hidden)
