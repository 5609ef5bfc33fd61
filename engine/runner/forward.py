"""The forward pass: from the chunks of a step to their logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from engine.attention.base import (
    AttentionBackend,
    CapturableBackend,
    PromptBackend,
    StepAttention,
)
from engine.executors.base import Executors
from engine.layers.attention import StepContext, Wanted
from engine.layers.vision import Sight
from engine.lora.slots import AdapterSlots
from engine.models.llama import ForCausalLM
from engine.parallel.stage import WHOLE, Stage
from engine.runner.graphs.prompt import PromptGraphs, prompt_sizes
from engine.runner.graphs.steps import StepGraphs
from engine.runner.inputs import ChunkFields, SampledTokens, build_inputs
from engine.runner.logprobs import LogprobRows, Reading
from engine.runner.memory import PagedCache
from engine.runner.pictures import PictureRows
from engine.runner.rows import Ints, RowTable
from engine.runner.states import Saves
from engine.scheduler.plan import Seen
from kernels.transfer import to_device


@dataclass(frozen=True, slots=True)
class Computed:
    """What a forward pass leaves to be sampled."""

    sampled: SampledTokens
    logits: torch.Tensor | None
    """[num_sampled, vocab]; None when no chunk samples; of no width where another stage does."""
    prompt_logprobs: Reading | None = None


class ForwardPass:
    """Computes a step by the first kind of CUDA graphs that serves it, else eagerly."""

    def __init__(
        self,
        executors: Executors,
        cache: PagedCache,
        table: RowTable,
        attention: AttentionBackend,
        logprobs: LogprobRows,
        adapters: AdapterSlots | None = None,
        stage: Stage = WHOLE,
        pictures: PictureRows | None = None,
    ) -> None:
        self.stage = stage
        self.pictures = pictures
        self.executors = executors
        self.graphs: StepGraphs | None = None
        self.prompt_graphs: PromptGraphs | None = None
        self.adapters = adapters
        self.logprobs = logprobs
        """What the requests of rows ask for; kept by the runner."""
        self._cache = cache
        self._table = table
        self._attention = attention

    def capture(
        self, num_drafts: int, max_num_tokens: int, on_progress: Callable[[float], None]
    ) -> None:
        """Record the graphs that attention can be part of. Call it before any request has a row.

        num_drafts: of a sequence, at most. max_num_tokens: of a step. ``on_progress`` hears how
        much is done, in [0, 1]."""
        adapters = self.adapters
        if adapters is not None and not adapters.is_capturable:
            adapters = None
        attention, layers, table = self._attention, self._cache.layers, self._table
        if isinstance(attention, CapturableBackend):
            self.graphs = StepGraphs(
                self.executors,
                layers,
                table,
                attention,
                adapters,
                num_drafts=num_drafts,
                states=self._cache.states,
                shifts=None if self.pictures is None else self.pictures.shifts,
            )
            self.graphs.capture(on_progress)
        sizes = prompt_sizes(min(max_num_tokens, table.tokens.shape[1]))
        # Of transformers' models only decode steps are known to wait for nothing.
        executor = self.executors.recorded
        is_native = isinstance(executor.model, ForCausalLM)
        if not (isinstance(attention, PromptBackend) and attention.captures_prompts and is_native):
            return
        # In a graph the host cannot tell where a prompt ends, which a state depends on.
        if sizes and len(table.windows) == 1 and self._cache.states is None:
            self.prompt_graphs = PromptGraphs(
                executor, layers, table, attention, adapters, sizes=sizes
            )
            self.prompt_graphs.capture()

    def run(
        self,
        fields: ChunkFields,
        *,
        keeps_features: bool,
        saves: Saves = (),
        seen: Sequence[Seen] = (),
    ) -> Computed:
        """keeps_features: for a draft network; steps with longer chunks always do. saves: states to
        keep, seen: image tokens, see ``StepPlan``."""
        computed = self._run(fields, keeps_features=keeps_features, saves=saves, seen=seen)
        if self._cache.states is not None:
            self._cache.states.save_ends(fields, saves)
        return computed

    def _run(
        self, fields: ChunkFields, *, keeps_features: bool, saves: Saves, seen: Sequence[Seen]
    ) -> Computed:
        adapters, pictures = self.adapters, self.pictures
        adapted = adapters is not None and adapters.serves(fields.rows)
        sight = None if pictures is None else pictures.sight(fields, seen)
        shifted = pictures is not None and not seen and pictures.only_shift(fields)
        graphs, prompts = self.graphs, self.prompt_graphs
        if sight is not None:
            graphs, prompts = graphs if shifted else None, None
        if graphs is not None and graphs.fits(fields, adapted=adapted, shifted=shifted):
            options = {"adapted": adapted, "shifted": shifted, "keeps_features": keeps_features}
            return Computed(*graphs.run(fields, **options))
        fits = prompts is not None and prompts.fits(fields, adapted=adapted)
        if prompts is not None and fits and not self.logprobs.wants_prompts(fields):
            return Computed(*prompts.run(fields, adapted=adapted))
        if adapters is None or not adapted:
            return self.run_eagerly(fields, keeps_features=keeps_features, saves=saves, sight=sight)
        sampled = fields.sampled_only()
        with adapters.applied((fields.rows, fields.query_lens), (sampled.rows, sampled.query_lens)):
            return self.run_eagerly(
                fields, keeps_features=keeps_features, adapted=True, saves=saves, sight=sight
            )

    def run_eagerly(
        self,
        fields: ChunkFields,
        *,
        keeps_features: bool,
        adapted: bool = False,
        saves: Saves = (),
        sight: Sight | None = None,
    ) -> Computed:
        inputs = build_inputs(fields, self._table, self._cache.block_size)
        keeps_features |= bool((fields.query_lens > 1).any())
        executors = self.executors if keeps_features else self.executors.resting or self.executors
        executor = executors.eager
        # Log-probabilities of prompts need the hidden states of all tokens.
        needs_all = self.logprobs.wants_prompts(fields)
        index, states = inputs.sampled.index_in(fields), self._cache.states
        step = StepContext(
            inputs.positions,
            [group.prepared(self._attention, self._cache.block_size) for group in inputs.groups],
            self._cache.layers,
            adapted=adapted,
            group_of=self._table.group_of,
            wanted=None if needs_all or index is None else self._wanted(fields, index),
            states=None if states is None else states.step(fields, saves),
            sight=sight,
        )
        hidden = executor.hidden_states(inputs.token_ids, step)
        prompt_logprobs = None
        if self.stage.is_last:
            tokens = self._table.tokens
            prompt_logprobs = self.logprobs.of_prompts(fields, hidden, tokens, executor.logits)
        logits = None
        if len(inputs.sampled.chunks):
            if step.wanted is None and index is not None:
                hidden = hidden.index_select(0, to_device(index, hidden.device))
            logits = executor.logits(hidden)
        return Computed(inputs.sampled, logits, prompt_logprobs)

    def _wanted(self, fields: ChunkFields, index: Ints) -> Wanted:
        """The tokens whose logits are sampled."""
        index = index if len(index) else np.zeros(1, np.int64)
        prepare = partial(self._attend_at_sampled, fields)
        return Wanted(to_device(index, self._table.tokens.device), prepare)

    def _attend_at_sampled(self, fields: ChunkFields) -> StepAttention:
        """Attention of the last layer, whose other queries nobody needs."""
        block_size = self._cache.block_size
        inputs = build_inputs(fields.sampled_only(), self._table, block_size)
        group = self._table.group_of[-1] if len(inputs.groups) > 1 else 0
        return inputs.groups[group].prepared(self._attention, block_size).attend
