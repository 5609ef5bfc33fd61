"""Executes step plans on torch: the ``Runner`` protocol of ``engine.scheduler.plan``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from engine.attention.base import AttentionBackend, StepAttention
from engine.cache.groups import GroupKind, kinds_of
from engine.executors.base import Executors
from engine.layers.attention import StepContext, Wanted
from engine.lora.slots import AdapterSlots
from engine.runner.block_copies import BlockCopies
from engine.runner.drafts.drafting import Drafting
from engine.runner.drafts.unseen import UnseenDrafts
from engine.runner.graphs.prompt import PromptGraphs
from engine.runner.graphs.steps import StepGraphs
from engine.runner.host_tokens import HostTokens
from engine.runner.inputs import ChunkFields, SampledTokens, build_inputs
from engine.runner.logprobs import LogprobRows, Reading
from engine.runner.memory import PagedCache
from engine.runner.rows import Ints, RowTable
from engine.runner.step_costs import measure_step_costs
from engine.runner.step_waits import StepWaits
from engine.runner.swap import HostBlocks
from engine.sampling.sampler import RowMask, Sampler
from engine.scheduler.plan import UNSEEN, Chunk, StepPlan, StepResult, TokenMask
from engine.spec.costs import StepCosts
from engine.spec.rejection import accept
from kernels.transfer import to_device

_WARM_UP_LENGTHS = 12, 24, 48, 160
"""Lengths of the prompts that are run before the first request. Each length uses other attention
kernels, which are loaded at their first use; 160 tokens use those of all longer prompts."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step between ``forward`` and ``sample``."""

    plan: StepPlan
    sampled: SampledTokens | None
    """None for a plan without chunks."""
    logits: torch.Tensor | None
    """[num_sampled, vocab]; None when no chunk samples."""
    prompt_logprobs: Reading | None = None
    drafted: UnseenDrafts | None = None
    copied_out: torch.cuda.Event | None = None
    """At the end of the step's copies to host memory."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A step between ``sample`` and ``collect``."""

    finish: Callable[[_Sampled], StepResult]
    plan: StepPlan
    tokens: SampledTokens | None
    token_ids: torch.Tensor | None
    """[num_sampled] int64 in host memory once ``arrived``, as is all that follows."""
    logprobs: Reading | None
    prompt_logprobs: Reading | None
    drafted: UnseenDrafts | None
    copied_out: torch.cuda.Event | None
    launched_at: float
    arrived: torch.cuda.Event | None

    def collect(self) -> StepResult:
        return self.finish(self)


class TorchRunner:
    """One model on one device. ``load_runner`` builds it."""

    def __init__(
        self,
        executors: Executors,
        cache: PagedCache,
        table: RowTable,
        sampler: Sampler,
        attention: AttentionBackend,
        graphs: StepGraphs | None = None,
        host_blocks: HostBlocks | None = None,
        drafting: Drafting | None = None,
        prompt_graphs: PromptGraphs | None = None,
        accept: Callable[[Chunk, list[int]], list[int]] = accept,
        adapters: AdapterSlots | None = None,
        *,
        block_copies: BlockCopies,
        vocab_size: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._executors = executors
        self._cache = cache
        self._block_copies = block_copies
        self._table = table
        self._sampler = sampler
        self._attention = attention
        self._graphs = graphs
        self._host_blocks = host_blocks
        self._drafting = drafting
        self._prompt_graphs = prompt_graphs
        self._accept = accept
        self.adapters = adapters
        self.step_costs: StepCosts | None = None
        self._block_size = cache.block_size
        self.max_model_len = table.tokens.shape[1]
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.device = device = table.tokens.device
        self._logprobs = LogprobRows(len(table.tokens), vocab_size)
        self._launched: _Launched | None = None
        self._launched_at = 0.0
        """``time.perf_counter`` at the beginning of the last ``forward``."""
        self._waits = StepWaits()
        self._host_tokens = HostTokens(device)
        self._num_in_flight = 0
        self._drafted: UnseenDrafts | None = None
        """Drafts on the device that the next plan will check, but the host has not seen."""

    @property
    def num_blocks(self) -> int:
        return self._cache.num_blocks

    @property
    def layer_groups(self) -> tuple[GroupKind, ...]:
        # Graphs fill a sequence up with the tokens before its own (see ``StepGraphs``), and those
        # read keys further back.
        graphs, groups = self._graphs, self._cache.groups
        num_fillers = 0 if graphs is None else graphs.num_fillers
        windows = [None if window is None else window + num_fillers for window in groups.windows]
        return kinds_of(windows, groups.window_step)

    @property
    def num_swap_blocks(self) -> int:
        return 0 if self._host_blocks is None else self._host_blocks.num_blocks

    @property
    def swap_s_per_block(self) -> float:
        return 0.0 if self._host_blocks is None else self._host_blocks.s_per_block

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
        assert self._num_in_flight < 2, "forward with two steps not collected"
        self._launched_at = time.perf_counter()
        copied_out = self._apply(plan)
        drafted, self._drafted = self._drafted, None
        launched = _Launched(plan, None, None)
        if plan.chunks:
            launched = self._compute(plan, ChunkFields.read(plan.chunks))
        if drafted is not None or copied_out is not None:
            launched = replace(launched, drafted=drafted, copied_out=copied_out)
        self._launched = launched

    def _compute(self, plan: StepPlan, fields: ChunkFields) -> _Launched:
        """Run the model: by the first kind of CUDA graphs that serves the step, else eagerly."""
        adapters = self.adapters
        adapted = adapters is not None and adapters.serves(fields.rows)
        if self._graphs is not None and self._graphs.fits(fields, adapted=adapted):
            keeps = _keeps_features(plan)
            return _Launched(plan, *self._graphs.run(fields, adapted=adapted, keeps_features=keeps))
        prompts = self._prompt_graphs
        fits = prompts is not None and prompts.fits(fields, adapted=adapted)
        if prompts is not None and fits and not self._logprobs.wants_prompts(fields):
            return _Launched(plan, *prompts.run(fields, adapted=adapted))
        if adapters is None or not adapted:
            return self._run_eagerly(plan, fields)
        sampled = fields.sampled_only()
        with adapters.applied((fields.rows, fields.query_lens), (sampled.rows, sampled.query_lens)):
            return self._run_eagerly(plan, fields, adapted=True)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run a few prompts, so that no request waits for what is compiled or loaded at first use,
        which may take as long as a thousand steps. Call it before the first plan."""
        if self.device.type == "cuda":
            for length in _WARM_UP_LENGTHS:
                one = np.ones(1, np.int64)
                lens = one * min(length, self.max_model_len - 1)
                self._run_eagerly(StepPlan(-1), ChunkFields(one * 0, one * 0, lens, one))
        if self._drafting is not None:
            self._drafting.warm_up()

    def measure_step_costs(self, num_drafts: int, max_num_tokens: int) -> None:
        """Measure ``step_costs``. Call it before the first plan."""
        nothing = StepPlan(-1, keeps_features=False)
        graphs, drafting = self._graphs, self._drafting
        # A request of the greatest length has room for no more drafts.
        num_drafts = min(num_drafts, self.max_model_len - 1)
        lengths = [1, 3, num_drafts] if graphs is None else [*graphs.lengths, num_drafts]
        self.step_costs = measure_step_costs(
            lambda fields: self._compute(nothing, fields),
            None if drafting is None else drafting.rehearse,
            lengths=sorted({0, *(length for length in lengths if length <= num_drafts)}),
            max_num_seqs=len(self._table.tokens),
            max_num_tokens=max_num_tokens,
            max_model_len=self.max_model_len,
            device=self.device,
            is_padded=graphs is not None,
        )

    def _run_eagerly(
        self, plan: StepPlan, fields: ChunkFields, *, adapted: bool = False
    ) -> _Launched:
        inputs = build_inputs(fields, self._table, self._block_size)
        is_longer = bool((fields.query_lens > 1).any())
        executors = self._executors
        if executors.resting is not None and not (is_longer or _keeps_features(plan)):
            executors = executors.resting
        executor = executors.eager
        # Log-probabilities of prompts need the hidden states of all tokens.
        needs_all = self._logprobs.wants_prompts(fields)
        index = inputs.sampled.index_in(fields)
        step = StepContext(
            inputs.positions,
            [group.prepared(self._attention, self._block_size) for group in inputs.groups],
            self._cache.layers,
            adapted=adapted,
            group_of=self._table.group_of,
            wanted=None if needs_all or index is None else self._wanted(fields, index),
        )
        hidden = executor.hidden_states(inputs.token_ids, step)
        prompt_logprobs = self._logprobs.of_prompts(
            fields, hidden, self._table.tokens, executor.logits
        )
        logits = None
        if len(inputs.sampled.chunks):
            if step.wanted is None and index is not None:
                hidden = hidden.index_select(0, to_device(index, self.device))
            logits = executor.logits(hidden)
        return _Launched(plan, inputs.sampled, logits, prompt_logprobs)

    def _wanted(self, fields: ChunkFields, index: Ints) -> Wanted:
        """The tokens whose logits are sampled."""
        index = index if len(index) else np.zeros(1, np.int64)
        prepare = partial(self._attend_at_sampled, fields)
        return Wanted(to_device(index, self.device), prepare)

    def _attend_at_sampled(self, fields: ChunkFields) -> StepAttention:
        """Attention of the last layer, whose other queries nobody needs."""
        inputs = build_inputs(fields.sampled_only(), self._table, self._block_size)
        group = self._table.group_of[-1] if len(inputs.groups) > 1 else 0
        return inputs.groups[group].prepared(self._attention, self._block_size).attend

    @torch.inference_mode()
    def sample(self, mask: TokenMask | None) -> _Sampled:
        assert self._launched is not None, "sample before forward"
        launched, self._launched = self._launched, None
        tokens, logits = launched.sampled, launched.logits
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
            if kept is not None:
                logprobs = kept.of(sampled, tokens.chunks)
        self._num_in_flight += 1
        return _Sampled(
            self._finish,
            launched.plan,
            tokens,
            token_ids,
            logprobs,
            launched.prompt_logprobs,
            launched.drafted,
            launched.copied_out,
            self._launched_at,
            self._host_tokens.mark(),
        )

    def _finish(self, step: _Sampled) -> StepResult:
        """Wait for a step, and read what it sampled."""
        self._num_in_flight -= 1
        if step.arrived is not None:
            self._waits.wait(step.arrived, step.plan, step.launched_at)
        if step.copied_out is not None:
            step.copied_out.synchronize()
        chunks = step.plan.chunks
        if step.drafted is not None:
            chunks = step.drafted.seen(chunks)
        return StepResult(
            step.plan.step_id,
            self._kept(step, chunks),
            {} if step.logprobs is None else step.logprobs.by_chunk(),
            {} if step.prompt_logprobs is None else step.prompt_logprobs.by_chunk(),
        )

    def _kept(self, step: _Sampled, chunks: Sequence[Chunk]) -> list[list[int]]:
        """The new tokens of each chunk: those sampled, up to the first that differs from its draft.
        chunks: the step's, with their drafts."""
        tokens = step.tokens
        if tokens is None or step.token_ids is None:
            return [[] for _ in chunks]
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
        if self._host_blocks is not None:
            copied_out = self._host_blocks.copy_out(plan.swap_outs) if plan.swap_outs else None
            if plan.swap_ins:
                self._host_blocks.copy_in(plan.swap_ins)
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
        self._block_copies.copy(plan.block_copies)
        self._table.write_drafts(plan.chunks)
        if self._drafting is not None:
            self._drafting.apply(plan)
        return copied_out


def _keeps_features(plan: StepPlan) -> bool:
    """Whether a step of one token a chunk keeps features for a draft network. It does whenever a
    request was just admitted, because the drafts after its prompt read them."""
    return plan.keeps_features or bool(plan.admissions)


def _row_mask(tokens: SampledTokens, mask: TokenMask | None) -> RowMask | None:
    """The mask with indices of sampled rows in place of indices of chunks."""
    if mask is None or not mask.chunk_indices:
        return None
    chunks = np.array(mask.chunk_indices)
    place = np.arange(len(chunks)) - np.searchsorted(chunks, chunks)
    indices = np.searchsorted(tokens.chunks, chunks) + place
    assert (tokens.chunks[indices] == chunks).all(), "masked but not sampled"
    return RowMask(indices, mask.bitmask)
