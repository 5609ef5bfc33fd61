"""Executes step plans on torch: the ``Runner`` protocol of ``engine.scheduler.plan``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from engine.adapters import AdapterMemory
from engine.cache.groups import GroupKind, RecurrentState, kinds_of
from engine.models.base import ModelFacts
from engine.pooling import PoolingModel
from engine.runner.block_copies import BlockCopies
from engine.runner.drafts.drafting import Drafting
from engine.runner.drafts.unseen import UnseenDrafts
from engine.runner.forward import Computed, ForwardPass
from engine.runner.host_tokens import HostTokens
from engine.runner.inputs import ChunkFields, SampledTokens
from engine.runner.logprobs import Reading
from engine.runner.memory import PagedCache
from engine.runner.rows import RowTable
from engine.runner.step_costs import measure_step_costs
from engine.runner.step_waits import StepWaits
from engine.runner.swap import HostBlocks
from engine.runner.tokens_from_last import TokensFromLast
from engine.sampling.sampler import RowMask, Sampler
from engine.scheduler.plan import UNSEEN, Chunk, StepPlan, StepResult, TokenMask
from engine.spec.costs import StepCosts
from engine.spec.rejection import accept
from engine.vision import Vision

_WARM_UP_LENGTHS = 12, 24, 48, 160
"""Lengths of the prompts that are run before the first request. Each length uses other attention
kernels, which are loaded at their first use; 160 tokens use those of all longer prompts."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The KV cache, and what copies its blocks."""

    cache: PagedCache
    copies: BlockCopies
    host: HostBlocks | None = None
    """Blocks in host memory; None without swapping."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step between ``forward`` and ``sample``."""

    plan: StepPlan
    computed: Computed | None
    """None for a plan without chunks."""
    drafted: UnseenDrafts | None
    copied_out: torch.cuda.Event | None
    """At the end of the step's copies to host memory."""
    launched_at: float
    """``time.perf_counter`` at the beginning of ``forward``."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A step between ``sample`` and ``collect``."""

    finish: Callable[[Sampled], StepResult]
    launched: _Launched
    token_ids: torch.Tensor | None
    """[num_sampled] int64 in host memory once ``arrived``, as is all that is read."""
    logprobs: Reading | None
    arrived: torch.cuda.Event | None

    def collect(self) -> StepResult:
        return self.finish(self)


class TorchRunner:
    """One model on one device. ``load_runner`` builds it."""

    def __init__(
        self,
        facts: ModelFacts,
        forward_pass: ForwardPass,
        blocks: Blocks,
        table: RowTable,
        sampler: Sampler,
        drafting: Drafting | None = None,
        accept: Callable[[Chunk, list[int]], list[int]] = accept,
    ) -> None:
        self._forward_pass = forward_pass
        self._blocks = blocks
        self._table = table
        self._sampler = sampler
        self._drafting = drafting
        self._accept = accept
        self._logprobs = forward_pass.logprobs
        self.adapters = forward_pass.adapters
        self.step_costs: StepCosts | None = None
        self.pooling: PoolingModel | None = None
        self.vision: Vision | None = None
        self.stage = forward_pass.stage
        self._from_last = TokensFromLast(self.stage, table.tokens)
        self.max_model_len = table.tokens.shape[1]
        self.vocab_size = facts.vocab_size
        self.eos_token_ids = facts.eos_token_ids
        self.device = table.tokens.device
        self._launched: _Launched | None = None
        self._waits = StepWaits()
        self._host_tokens = HostTokens(self.device, most_in_flight=1 + self.stage.count)
        self._num_in_flight = 0
        self._drafted: UnseenDrafts | None = None
        """Drafts on the device that the next plan will check, but the host has not seen."""

    @property
    def adapter_memory(self) -> AdapterMemory | None:
        """For the core; None without adapters."""
        return self.adapters

    @property
    def max_num_seqs(self) -> int:
        """The most requests at once: there is a row for each."""
        return self._table.num_rows

    @property
    def num_blocks(self) -> int:
        return self._blocks.cache.num_blocks

    @property
    def layer_groups(self) -> tuple[GroupKind | RecurrentState, ...]:
        # Graphs fill a sequence up with the tokens before its own (see ``StepGraphs``), and those
        # read keys further back.
        graphs, groups = self._forward_pass.graphs, self._blocks.cache.groups
        num_fillers = 0 if graphs is None else graphs.num_fillers
        windows = [None if window is None else window + num_fillers for window in groups.windows]
        kinds, states = kinds_of(windows, groups.window_step), self._blocks.cache.states
        return kinds if states is None else (*kinds, RecurrentState(states.num_snapshots))

    @property
    def num_swap_blocks(self) -> int:
        return 0 if self._blocks.host is None else self._blocks.host.num_blocks

    @property
    def swap_s_per_block(self) -> float:
        return 0.0 if self._blocks.host is None else self._blocks.host.s_per_block

    @property
    def num_lookahead_tokens(self) -> int:
        return 0 if self._drafting is None else self._drafting.num_lookahead_tokens

    @torch.inference_mode()
    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        assert self._drafting is not None, "no draft network was loaded"
        if not asked:
            return []
        drafts = self._drafting.draft(asked, num_tokens)
        if isinstance(drafts, torch.Tensor) and wait:
            drafts = drafts.tolist()
        if isinstance(drafts, torch.Tensor):
            self._drafted = UnseenDrafts([row for row, _ in asked], drafts)
            drafts = [[UNSEEN] * drafts.shape[1]] * len(asked)
        return drafts

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        assert self._launched is None, "forward before the last step was sampled"
        assert self._num_in_flight < 1 + self.stage.count, "forward with too many not collected"
        launched_at = time.perf_counter()
        copied_out = self._apply(plan)
        drafted, self._drafted = self._drafted, None
        computed = None
        if plan.chunks:
            # The drafts after the prompt of a request just admitted read features.
            keeps_features = plan.keeps_features or bool(plan.admissions)
            fields = ChunkFields.read(plan.chunks)
            self._from_last.take_for(fields.rows)
            computed = self._forward_pass.run(
                fields, keeps_features=keeps_features, saves=plan.state_saves, seen=plan.seen
            )
        self._launched = _Launched(plan, computed, drafted, copied_out, launched_at)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run a few prompts, so that no request waits for what is compiled or loaded at first use,
        which may take as long as a thousand steps. Call it before the first plan."""
        if self.device.type == "cuda":
            for length in _WARM_UP_LENGTHS:
                one = np.ones(1, np.int64)
                lens = one * min(length, self.max_model_len - 1)
                fields = ChunkFields(one * 0, one * 0, lens, one)
                self._forward_pass.run_eagerly(fields, keeps_features=True)
        if self._drafting is not None:
            self._drafting.warm_up()

    def measure_step_costs(self, num_drafts: int, max_num_tokens: int) -> None:
        """Measure ``step_costs``. Call it before the first plan."""
        graphs, drafting = self._forward_pass.graphs, self._drafting
        # A request of the greatest length has room for no more drafts.
        num_drafts = min(num_drafts, self.max_model_len - 1)
        lengths = [1, 3, num_drafts] if graphs is None else [*graphs.lengths, num_drafts]
        self.step_costs = measure_step_costs(
            partial(self._forward_pass.run, keeps_features=False),
            None if drafting is None else drafting.rehearse,
            lengths=sorted({0, *(length for length in lengths if length <= num_drafts)}),
            max_num_seqs=len(self._table.tokens),
            max_num_tokens=max_num_tokens,
            max_model_len=self.max_model_len,
            device=self.device,
            is_padded=graphs is not None,
            agree=self.stage.least,
        )

    @torch.inference_mode()
    def sample(self, mask: TokenMask | None) -> Sampled:
        assert self._launched is not None, "sample before forward"
        launched, self._launched = self._launched, None
        tokens, logits = None, None
        if launched.computed is not None:
            tokens, logits = launched.computed.sampled, launched.computed.logits
        if not self.stage.is_last:
            if self.stage.is_first and tokens is not None and logits is not None:
                self._from_last.expect(launched.plan.step_id, tokens)
            logits = None
        token_ids = logprobs = None
        host = self._host_tokens.take(0 if logits is None else len(logits))
        if tokens is not None and logits is not None:
            kept = self._logprobs.keep(logits, tokens.rows)
            token_ids = host
            sampled = self._sampler.sample_into(
                self._table.tokens,
                logits,
                tokens.rows,
                tokens.positions,
                _row_mask(tokens, mask),
                tokens.on_device,
                token_ids,
            )
            if not self.stage.is_first:
                self.stage.send_tokens(sampled)
            if kept is not None:
                logprobs = kept.of(sampled, tokens.chunks)
        self._num_in_flight += 1
        return Sampled(self._finish, launched, token_ids, logprobs, self._host_tokens.mark())

    def _finish(self, step: Sampled) -> StepResult:
        """Wait for a step, and read what it sampled."""
        self._num_in_flight -= 1
        launched, plan = step.launched, step.launched.plan
        self._from_last.take_until(plan.step_id)
        if step.arrived is not None:
            self._waits.wait(step.arrived, plan, launched.launched_at)
        if launched.copied_out is not None:
            launched.copied_out.synchronize()
        chunks = plan.chunks
        if launched.drafted is not None:
            chunks = launched.drafted.seen(chunks)
        of_prompts = None if launched.computed is None else launched.computed.prompt_logprobs
        return StepResult(
            plan.step_id,
            self._kept(step, chunks),
            {} if step.logprobs is None else step.logprobs.by_chunk(),
            {} if of_prompts is None else of_prompts.by_chunk(),
        )

    def _kept(self, step: Sampled, chunks: Sequence[Chunk]) -> list[list[int]]:
        """The new tokens of each chunk: those sampled, up to the first that differs from its draft.
        chunks: the step's, with their drafts."""
        computed = step.launched.computed
        if computed is None or step.token_ids is None:
            return [[] for _ in chunks]
        tokens = computed.sampled
        sampled = step.token_ids.tolist()
        if tokens.once_each:
            return [[token_id] for token_id in sampled]
        token_ids: list[list[int]] = [[] for _ in chunks]
        for chunk, token_id in zip(tokens.chunks.tolist(), sampled, strict=True):
            token_ids[chunk].append(token_id)
        return list(map(self._accept, chunks, token_ids))

    def _apply(self, plan: StepPlan) -> torch.cuda.Event | None:
        """Update rows and blocks, in the order of the plan's fields. Returns the end of the copies
        to host memory, if there are any that take time."""
        for row in plan.released_rows:
            self._sampler.release(row)
            self._logprobs.release(row)
        copied_out = None
        host_blocks = self._blocks.host
        if host_blocks is not None:
            copied_out = host_blocks.copy_out(plan.swap_outs) if plan.swap_outs else None
            if plan.swap_ins:
                host_blocks.copy_in(plan.swap_ins)
        for admission in plan.admissions:
            self._logprobs.admit(admission)
            if self.adapters is not None:
                self.adapters.admit(admission.row, admission.adapter)
            self._sampler.admit(
                admission.row,
                admission.request_id,
                admission.params,
                admission.num_prompt_tokens,
            )
        if plan.admissions or plan.new_blocks:
            self._table.apply(plan.admissions, plan.new_blocks)
        self._blocks.copies.copy(plan.block_copies)
        if self._blocks.cache.states is not None:
            self._blocks.cache.states.load(plan.state_loads)
        if self._forward_pass.pictures is not None:
            self._forward_pass.pictures.apply(plan)
        self._table.write_drafts(plan.chunks)
        if self._drafting is not None:
            self._drafting.apply(plan)
        return copied_out


def _row_mask(tokens: SampledTokens, mask: TokenMask | None) -> RowMask | None:
    """The mask with indices of sampled rows in place of indices of chunks."""
    if mask is None or not mask.chunk_indices:
        return None
    chunks = np.array(mask.chunk_indices)
    place = np.arange(len(chunks)) - np.searchsorted(chunks, chunks)
    indices = np.searchsorted(tokens.chunks, chunks) + place
    assert (tokens.chunks[indices] == chunks).all(), "masked but not sampled"
    return RowMask(indices, mask.bitmask)
