"""Executes step plans on torch: the ``Runner`` protocol of ``engine.scheduler.plan``."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionBackend
from engine.layers.attention import StepContext
from engine.models.base import Model
from engine.runner.graphs import DecodeGraphs
from engine.runner.inputs import ChunkFields, StepInputs, build_inputs
from engine.runner.memory import PagedCache
from engine.runner.rows import RowTable
from engine.sampling.sampler import RowMask, Sampler
from engine.scheduler.plan import StepPlan, StepResult, TokenMask
from engine.spec.rejection import accept


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step between ``forward`` and ``sample``."""

    plan: StepPlan
    inputs: StepInputs
    logits: torch.Tensor | None
    """[num_sampled, vocab]; None when no chunk samples."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A step between ``sample`` and ``collect``."""

    plan: StepPlan
    inputs: StepInputs
    token_ids: torch.Tensor | None
    """[num_sampled] int64 in host memory once ``arrived``."""
    arrived: torch.cuda.Event | None


class TorchRunner:
    """One model on one device. ``load_runner`` builds it."""

    def __init__(
        self,
        model: Model,
        cache: PagedCache,
        table: RowTable,
        sampler: Sampler,
        attention: AttentionBackend,
        graphs: DecodeGraphs | None = None,
        *,
        block_size: int,
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
    ) -> None:
        self._model = model
        self._cache = cache
        self._table = table
        self._sampler = sampler
        self._attention = attention
        self._graphs = graphs
        self._block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.device = device
        self._launched: _Launched | None = None
        self._sampled: deque[_Sampled] = deque()

    @property
    def num_blocks(self) -> int:
        return self._cache.num_blocks

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        assert self._launched is None, "forward before the last step was sampled"
        assert len(self._sampled) < 2, "forward with two steps not collected"
        self._apply(plan)
        fields = ChunkFields.read(plan.chunks)
        if self._graphs is not None and self._graphs.fits(fields):
            self._launched = _Launched(plan, *self._graphs.run(fields))
        else:
            self._launched = _Launched(plan, *self._run_eagerly(fields))

    def _run_eagerly(self, fields: ChunkFields) -> tuple[StepInputs, torch.Tensor | None]:
        inputs = build_inputs(fields, self._table, self._block_size)
        step = StepContext(
            inputs.positions,
            inputs.slots,
            self._attention.prepare(inputs.attention, self._block_size),
            self._cache.layers,
        )
        hidden = self._model.hidden_states(inputs.token_ids, step)
        logits = None
        if len(inputs.sampled_chunks):
            if inputs.logits_index is not None:
                hidden = hidden.index_select(0, inputs.logits_index)
            logits = self._model.logits(hidden)
        return inputs, logits

    @torch.inference_mode()
    def sample(self, mask: TokenMask | None) -> None:
        assert self._launched is not None, "sample before forward"
        plan, inputs, logits = (
            self._launched.plan,
            self._launched.inputs,
            self._launched.logits,
        )
        self._launched = None
        if logits is None:
            self._sampled.append(_Sampled(plan, inputs, None, None))
            return
        token_ids = self._sampler.sample_into(
            self._table.tokens,
            logits,
            inputs.sampled_rows,
            inputs.sampled_positions,
            _row_mask(inputs, mask),
            inputs.sampled_on_device,
        )
        if self.device.type == "cuda":
            # Only a copy to pinned memory leaves the host free.
            on_host = torch.empty(token_ids.shape, dtype=torch.int64, pin_memory=True)
            on_host.copy_(token_ids, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            self._sampled.append(_Sampled(plan, inputs, on_host, arrived))
        else:
            self._sampled.append(_Sampled(plan, inputs, token_ids, None))

    def collect(self) -> StepResult:
        step = self._sampled.popleft()
        if step.arrived is not None:
            step.arrived.synchronize()
        token_ids: list[list[int]] = [[] for _ in step.plan.chunks]
        if step.token_ids is not None:
            sampled = step.token_ids.tolist()
            for chunk, token_id in zip(step.inputs.sampled_chunks.tolist(), sampled, strict=True):
                token_ids[chunk].append(token_id)
        verified = map(accept, step.plan.chunks, token_ids)
        return StepResult(step.plan.step_id, list(verified))

    def _apply(self, plan: StepPlan) -> None:
        """Bring the persistent state up to date, in the order the plan's contract gives."""
        for row in plan.released_rows:
            self._sampler.release(row)
        for admission in plan.admissions:
            self._sampler.admit(
                admission.row,
                admission.request_id,
                admission.params,
                admission.num_prompt_tokens,
            )
        if plan.admissions or plan.new_blocks:
            self._table.apply(plan.admissions, plan.new_blocks)
        for source, target, num_slots in plan.block_copies:
            self._cache.copy_block(source, target, num_slots)
        self._table.write_drafts(plan.chunks)


def _row_mask(inputs: StepInputs, mask: TokenMask | None) -> RowMask | None:
    """The mask with chunk indices turned into indices of the rows being sampled."""
    if mask is None or not mask.chunk_indices:
        return None
    chunks = np.array(mask.chunk_indices)
    place = np.arange(len(chunks)) - np.searchsorted(chunks, chunks)
    indices = np.searchsorted(inputs.sampled_chunks, chunks) + place
    assert (inputs.sampled_chunks[indices] == chunks).all(), "masked but not sampled"
    return RowMask(indices, mask.bitmask)
