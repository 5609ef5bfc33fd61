"""Runners of models that pool: a step computes a vector or a score for each prompt that it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.cache.groups import GroupKind, kinds_of
from engine.config import EngineConfig
from engine.layers.encoder import Prompts
from engine.models.encoder import Encoder
from engine.pooling import PoolingModel
from engine.runner.runner import TorchRunner
from engine.scheduler.plan import Admission, LaunchedStep, StepPlan, StepResult, TokenMask
from engine.spec.costs import StepCosts
from kernels.transfer import pinned


@dataclass(frozen=True, slots=True)
class PooledStep:
    """A step between ``sample`` and ``collect``."""

    plan: StepPlan
    chunks: Sequence[int]
    """Those that end with their prompt, in the order of the results."""
    pooled: torch.Tensor | None
    """[num, size] float32 in host memory once ``arrived``."""
    arrived: torch.cuda.Event | None
    on_collect: Callable[[], None] | None = None

    @classmethod
    def start(
        cls,
        plan: StepPlan,
        chunks: Sequence[int],
        pooled: torch.Tensor | None,
        on_collect: Callable[[], None] | None = None,
    ) -> PooledStep:
        """pooled: on the device."""
        if pooled is None or not pooled.is_cuda:
            return cls(plan, chunks, pooled, None, on_collect)
        host, arrived = pinned(pooled), torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return cls(plan, chunks, host, arrived, on_collect)

    def collect(self) -> StepResult:
        if self.on_collect is not None:
            self.on_collect()
        if self.arrived is not None:
            self.arrived.synchronize()
        rows = [] if self.pooled is None else list(self.pooled.numpy())
        pooled = {
            chunk: row.astype("<f4").tobytes() for chunk, row in zip(self.chunks, rows, strict=True)
        }
        return StepResult(self.plan.step_id, [[] for _ in self.plan.chunks], pooled=pooled)


class PoolingRunner(TorchRunner):
    """A decoder whose head is a ``PoolingHead``: what it makes of the last token's hidden state
    takes the place of logits."""

    @torch.inference_mode()
    def sample(self, mask: TokenMask | None) -> LaunchedStep:  # type: ignore[override]
        assert mask is None, "a mask for a step that samples nothing"
        assert self._launched is not None, "sample before forward"
        launched, self._launched = self._launched, None
        self._num_in_flight += 1
        chunks, pooled = [], None
        if launched.computed is not None:
            chunks, pooled = launched.computed.sampled.chunks.tolist(), launched.computed.logits
        return PooledStep.start(launched.plan, chunks, pooled, self._leave_flight)

    def _leave_flight(self) -> None:
        self._num_in_flight -= 1


class EncoderRunner:
    """An encoder on one device. A prompt comes with its admission and is computed in the same step,
    so nothing is kept: the blocks of its cache are only numbers."""

    adapter_memory = None
    num_swap_blocks = 0
    swap_s_per_block = 0.0
    layer_groups: Sequence[GroupKind] = kinds_of([None])
    num_lookahead_tokens = 0
    step_costs: StepCosts | None = None
    vision = None
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(
        self,
        model: Encoder,
        config: EngineConfig,
        *,
        max_model_len: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self.pooling: PoolingModel = model.pooling
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.device = device
        # Two steps are in flight at most, and each prompt may leave a part of a block.
        num_blocks = 2 * (config.step_tokens // config.block_size + config.num_seqs)
        self.num_blocks = num_blocks + max_model_len // config.block_size
        self._launched: PooledStep | None = None

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        raise AssertionError("an encoder drafts nothing")

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        by_row: dict[int, Admission] = {admission.row: admission for admission in plan.admissions}
        lengths = [chunk.num_scheduled_tokens for chunk in plan.chunks]
        # Prompts of like length side by side need little padding where there must be some.
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        admitted = [by_row[plan.chunks[index].row] for index in order]
        if not admitted:
            self._launched = PooledStep(plan, [], None, None)
            return
        prompts = Prompts(
            [admission.token_ids for admission in admitted],
            [a.pooling.second_text if a.pooling else None for a in admitted],
            self.device,
        )
        self._launched = PooledStep.start(plan, order, self._model.pooled(prompts))

    def sample(self, mask: TokenMask | None) -> LaunchedStep:
        assert mask is None, "a mask for a step that samples nothing"
        assert self._launched is not None, "sample before forward"
        launched, self._launched = self._launched, None
        return launched
