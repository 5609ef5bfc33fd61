"""Decode steps as CUDA graphs: one launch in place of the hundreds that the layers make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from engine.attention.base import CapturableBackend, plain_batch
from engine.layers.attention import KVCache, StepContext
from engine.lora.slots import AdapterSlots, captured
from engine.models.base import Model
from engine.runner.graphs.joined_tokens import faster_tokens, measured_sizes
from engine.runner.graphs.one_kernel import (
    LEAD,
    SHORT,
    blocks_of_their_own,
    log_faster,
    measure_most_tokens,
    time_ratio,
)
from engine.runner.graphs.shared_inputs import SharedInputs
from engine.runner.graphs.sized import SizedGraphs, capture_all
from engine.runner.graphs.static_inputs import SequenceBuffers
from engine.runner.inputs import ChunkFields, SampledTokens
from engine.runner.rows import RowTable
from engine.sampling.sampler import DeviceRows


def capture_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes worth a graph: close enough that padding costs little, the largest included."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


def sharing_sizes(sizes: list[int]) -> list[int]:
    """Those of the batch sizes that are worth a second graph, for batches with shared prefixes."""
    return [size for size in sizes if size in (8, 16, sizes[-1]) or size % 32 == 0]


def adapted_sizes(sizes: list[int]) -> list[int]:
    """Those of the batch sizes that are worth another graph, for batches with adapters."""
    some = {1, 2, 4, 8, 16, 32, 96, sizes[-1]}
    return [size for size in sizes if size in some or size % 64 == 0]


class DecodeGraphs:
    """Graphs of the forward pass for steps in which every sequence computes one token.

    Steps that share prefixes have graphs of their own, and so have those with adapters: a step with
    neither pays for neither. Few sequences have some with all layers as one kernel, if the model
    has that, up to the lengths for which ``capture`` measured them to be faster; more of them have
    one kernel behind each attention, likewise.
    """

    def __init__(
        self,
        model: Model,
        kv_cache: KVCache,
        table: RowTable,
        attention: CapturableBackend,
        adapters: AdapterSlots | None = None,
        resting: Model | None = None,
        *,
        block_size: int,
        max_num_seqs: int,
    ) -> None:
        """adapters: if any, they are capturable. resting: the same model, which keeps nothing for a
        draft network."""
        self._model = model
        self._resting = resting
        self._kv_cache = kv_cache
        self._table = table
        self._attention = attention
        self._block_size = block_size
        self.max_batch = max_num_seqs
        self._buffers = SequenceBuffers(table, block_size, max_num_seqs, 1)
        sizes = capture_sizes(max_num_seqs)
        self._adapters = adapters
        self._shared: SharedInputs | None = None
        if attention.sharing is not None and max_num_seqs > 1:
            self._shared = SharedInputs(table, attention.sharing)
        self._families: dict[tuple[bool, bool, bool], SizedGraphs] = {}
        """By whether prefixes are shared, whether there are adapters, and whether the model is the
        resting one, which serves none of these."""
        self._add_families(sizes, model, adapted=False)
        if adapters is not None:
            self._add_families(adapted_sizes(sizes), model, adapted=True)
        if resting is not None:
            self._add_families(sizes, resting, adapted=False)
        self.joined_tokens: frozenset[int] = frozenset()
        """Numbers of tokens of a step for which one kernel behind each attention is faster; known
        once graphs are captured."""
        self._as_one: dict[bool, SizedGraphs] = {}
        """Those with the layers as one kernel, by whether the model is the resting one."""
        self._max_tokens: dict[int, int] = {}
        """By their sizes: of all sequences together, for which they are faster."""
        for each in (model,) if resting is None else (model, resting):
            few = [size for size in sizes if size <= each.max_one_kernel_batch]
            if few and self._leaves_attention_to_others():
                forward = partial(self._forward, each, one_kernel=True)
                self._as_one[each is resting] = SizedGraphs(few, forward)

    def _add_families(self, sizes: list[int], model: Model, *, adapted: bool) -> None:
        for shared in (False, True) if self._shared is not None else (False,):
            forward = partial(self._forward, model, shared=shared, adapted=adapted)
            self._families[shared, adapted, model is self._resting] = SizedGraphs(
                sharing_sizes(sizes) if shared else sizes, forward
            )

    def capture(self, on_progress: Callable[[float], None]) -> None:
        """Record all graphs; ``on_progress`` hears how much is done, in [0, 1].

        Call it before any request has a row: measured steps write into blocks that nobody holds.
        """
        self._measure_joined()
        families = [*self._families.values(), *self._as_one.values()]
        capture_all(families, self._pad, on_progress)
        if self._as_one:
            self._measure_all_as_one()

    def _pad(self, size: int) -> None:
        nobody = np.zeros(0, np.int64)
        self._buffers.send(nobody, nobody, size=size)

    def _leaves_attention_to_others(self) -> bool:
        return plain_batch(self._buffers.group_step(self._attention, 1).attend) is not None

    def _measure_joined(self) -> None:
        """With graphs that are dropped again: those that stay are recorded the faster way."""
        model = self._resting or self._model  # What is kept for a draft network is no layer's.
        sizes = measured_sizes(model.joinable_tokens, self.max_batch)
        if not sizes:
            return
        ways = {
            joined: SizedGraphs(sizes, partial(self._forward, model, joined=joined))
            for joined in (True, False)
        }
        capture_all([*ways.values()], self._pad)
        device = self._table.block_table.device

        def is_faster(size: int) -> bool:
            with blocks_of_their_own(size, self._table, self._kv_cache) as max_len:
                self._send_even(size, min(SHORT, max_len))
                ours, theirs = (partial(ways[joined].replay, size) for joined in (True, False))
                return time_ratio(ours, theirs, device) <= LEAD

        self.joined_tokens = faster_tokens(model.joinable_tokens, self.max_batch, is_faster)
        ways.clear()
        torch.cuda.empty_cache()

    def _measure_all_as_one(self) -> None:
        # Of one model: what is kept for a draft network is no part of the layers.
        resting, as_one = next(iter(self._as_one.items()))
        layers = self._families[False, False, resting]
        for size in as_one.sizes:
            prepare = partial(self._send_even, size)
            step = as_one, layers, size, prepare, self._table, self._kv_cache
            self._max_tokens[size] = measure_most_tokens(*step)
        log_faster("decode steps", {str(size): most for size, most in self._max_tokens.items()})
        if not any(self._max_tokens.values()):
            self._as_one.clear()

    def _send_even(self, size: int, seq_len: int) -> None:
        self._buffers.send(np.arange(size), np.full(size, seq_len - 1), size=size)

    def fits(self, fields: ChunkFields, *, adapted: bool = False) -> bool:
        """Whether a step is one that ``run`` can execute. adapted: some rows have an adapter."""
        return bool(
            len(fields.rows) <= self.max_batch
            and (fields.query_lens == 1).all()
            and (fields.num_sampled == 1).all()
            and (self._adapters is not None or not adapted)
        )

    def run(
        self, fields: ChunkFields, *, adapted: bool = False, keeps_features: bool = True
    ) -> tuple[SampledTokens, torch.Tensor]:
        """Execute a step that ``fits``: what is sampled, and its logits [num_chunks, vocab].

        Both live in memory that the next ``run`` overwrites, in stream order.
        """
        batch = len(fields.rows)
        shared = self._shared is not None and self._shared.find(fields)
        resting = self._resting is not None and not (keeps_features or adapted)
        family = self._family(fields, shared=shared, adapted=adapted, resting=resting)
        size = family.size_for(batch)
        if self._shared is not None and shared:
            self._shared.send(size)
        if self._adapters is not None and adapted:
            self._adapters.send(fields.rows, size)
        # Not in the graph: the host's integers are arguments of the kernel that looks up the rest.
        self._buffers.send(fields.rows, fields.computed, size=size)
        logits = family.replay(size)
        known = self._buffers.batch(batch).seq_lens
        on_device = DeviceRows(self._buffers.rows(batch), known)
        return SampledTokens.of(fields, on_device), logits[:batch]

    def _family(
        self, fields: ChunkFields, *, shared: bool, adapted: bool, resting: bool
    ) -> SizedGraphs:
        layers, batch = self._families[shared, adapted, resting], len(fields.rows)
        as_one = self._as_one.get(resting)
        if as_one is None or batch > as_one.max_batch or shared or adapted:
            return layers
        max_tokens = self._max_tokens.get(layers.size_for(batch), 0)
        return as_one if int(fields.computed.sum()) + batch <= max_tokens else layers

    def _forward(
        self,
        model: Model,
        size: int,
        *,
        shared: bool = False,
        adapted: bool = False,
        one_kernel: bool = False,
        joined: bool | None = None,
    ) -> torch.Tensor:
        """joined: whether with one kernel behind each attention; None: where that is faster."""
        token_ids, positions = self._buffers.tokens(size)
        prefixes = self._shared.on_device(size) if self._shared is not None and shared else None
        step = StepContext(
            positions,
            self._buffers.group_steps(self._attention, size, prefixes),
            self._kv_cache,
            adapted=adapted,
            group_of=self._table.group_of,
            one_kernel=one_kernel,
            joins_products=size in self.joined_tokens if joined is None else joined,
        )
        with captured(self._adapters if adapted else None, size):
            return model.logits(model.hidden_states(token_ids, step))
