"""A scheduler small enough to trust: it drives a runner through the situations tests ask for."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.cache.groups import RecurrentState
from engine.runner import TorchRunner
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, LaunchedStep, StepPlan, TokenMask

MaskFunction = Callable[[list[int]], npt.NDArray[np.bool_]]
"""From the generated tokens to the allowed ones: [vocab_size] bool."""


@dataclass(eq=False)
class Generation:
    """A request and everything known about it."""

    request_id: str
    prompt: list[int]
    max_tokens: int
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    mask: MaskFunction | None = None
    shares: tuple[Generation, int] | None = None
    """Take the blocks of the first n tokens from another request: a prefix hit."""
    output: list[int] = field(default_factory=list)
    computed: int = 0
    planned_tokens: int = 0
    """Known tokens, counting those that steps in flight will sample."""
    blocks: list[list[int]] = field(default_factory=list)
    """By layer group."""
    row: int | None = None

    @property
    def finished(self) -> bool:
        return len(self.output) == self.max_tokens

    @property
    def fully_planned(self) -> bool:
        return self.planned_tokens == len(self.prompt) + self.max_tokens


class Harness:
    """Plans steps for a runner; blocks are handed out in random order."""

    def __init__(self, runner: TorchRunner, *, block_size: int, max_rows: int, seed: int = 0):
        self.runner = runner
        self.block_size = block_size
        self.rng = random.Random(seed)
        self.free_blocks = list(range(runner.num_blocks))
        self.rng.shuffle(self.free_blocks)
        self.free_rows = list(range(max_rows))
        self.rng.shuffle(self.free_rows)
        self.released: list[int] = []
        self.step_id = 0
        kinds = runner.layer_groups
        self.num_groups = sum(not isinstance(kind, RecurrentState) for kind in kinds)
        self.has_states = self.num_groups < len(kinds)
        self.snapshots: dict[tuple[Generation, int], int] = {}
        """By the generation and the number of its tokens that others share."""

    def run(
        self,
        generations: Sequence[Generation],
        *,
        chunk_size: int = 1 << 30,
        token_budget: int = 1 << 30,
        max_running: int = 1 << 30,
        overlap: bool = False,
        preempt: Callable[[int, list[Generation]], list[Generation]] | None = None,
    ) -> None:
        """Run all to their max_tokens. ``preempt(step, running)`` names victims (no overlap)."""
        waiting = deque(generations)
        shared = [generation.shares for generation in generations if generation.shares is not None]
        if self.has_states:
            self.snapshots = {source: number for number, source in enumerate(shared)}
        running: list[Generation] = []
        in_flight: deque[tuple[StepPlan, LaunchedStep, list[Generation]]] = deque()
        while waiting or running or in_flight:
            for victim in preempt(self.step_id, running) if preempt and not in_flight else []:
                running.remove(victim)
                self._release(victim)
                waiting.appendleft(victim)
            plan, members = self._plan(waiting, running, chunk_size, token_budget, max_running)
            if plan.chunks:
                self.runner.forward(plan)
                launched = self.runner.sample(self._mask(plan, members))
                in_flight.append((plan, launched, members))
            if in_flight and (len(in_flight) > 1 or not overlap or not plan.chunks):
                self._collect(*in_flight.popleft(), running)

    def _plan(
        self,
        waiting: deque[Generation],
        running: list[Generation],
        chunk_size: int,
        token_budget: int,
        max_running: int,
    ) -> tuple[StepPlan, list[Generation]]:
        plan = StepPlan(self.step_id, released_rows=self.released)
        self.step_id, self.released = self.step_id + 1, []
        members: list[Generation] = []
        # A block copy happens before the forward pass: its source is an earlier step's work.
        written = {generation: generation.computed for generation in running}
        for generation in running:
            self._schedule(generation, plan, members, chunk_size, token_budget)
        while waiting and len(running) < max_running and plan.num_tokens < token_budget:
            generation = waiting[0]
            source = generation.shares
            if source is not None and written.get(source[0], 0) < source[1]:
                break
            running.append(waiting.popleft())
            self._schedule(generation, plan, members, chunk_size, token_budget)
        return plan, members

    def _schedule(
        self,
        generation: Generation,
        plan: StepPlan,
        members: list[Generation],
        chunk_size: int,
        token_budget: int,
    ) -> None:
        if generation.row is None:
            self._prepare_admission(generation, plan)
        known = generation.planned_tokens
        n = min(known - generation.computed, chunk_size, token_budget - plan.num_tokens)
        if n <= 0 or (generation.fully_planned and known - generation.computed <= 1):
            n = 0
        end = generation.computed + n
        tables = generation.blocks
        num_fresh = -(-end // self.block_size) - len(tables[0])
        fresh = [[self.free_blocks.pop() for _ in range(num_fresh)] for _ in tables]
        for table, blocks in zip(tables, fresh, strict=True):
            table += blocks
        if generation.row is None:
            generation.row = self.free_rows.pop()
            if generation.computed and self.has_states:
                assert generation.shares is not None
                plan.state_loads.append((self.snapshots[generation.shares], generation.row))
            plan.admissions.append(
                Admission(
                    row=generation.row,
                    request_id=generation.request_id,
                    token_ids=generation.prompt + generation.output,
                    num_prompt_tokens=len(generation.prompt),
                    block_ids=[list(blocks) for blocks in generation.blocks],
                    params=generation.params,
                )
            )
        else:
            plan.append(generation.row, fresh)
        if n == 0:
            return
        samples = end == known
        plan.chunks.append(
            Chunk(
                row=generation.row,
                request_id=generation.request_id,
                num_computed_tokens=generation.computed,
                num_scheduled_tokens=n,
                samples=samples,
                constrained=samples and generation.mask is not None,
            )
        )
        members.append(generation)
        plan.state_saves += [
            (generation.row, num_tokens, snapshot)
            for (source, num_tokens), snapshot in self.snapshots.items()
            if source is generation and end - n < num_tokens <= end
        ]
        generation.computed = end
        generation.planned_tokens += samples

    def _prepare_admission(self, generation: Generation, plan: StepPlan) -> None:
        generation.planned_tokens = len(generation.prompt) + len(generation.output)
        generation.blocks = [[] for _ in range(self.num_groups)]
        if generation.shares is None or generation.output:
            return
        source, num_tokens = generation.shares
        assert source.prompt[:num_tokens] == generation.prompt[:num_tokens]
        whole, rest = divmod(num_tokens, self.block_size)
        generation.blocks = [blocks[:whole] for blocks in source.blocks]
        generation.computed = num_tokens
        if rest:
            theirs, ours = source.blocks, generation.blocks
            for table, of_source in zip(ours, theirs, strict=True):
                table.append(self.free_blocks.pop())
                plan.block_copies.append((of_source[whole], table[whole], rest))

    def _mask(self, plan: StepPlan, members: list[Generation]) -> TokenMask | None:
        rows = [
            (i, np.packbits(generation.mask(generation.output), bitorder="little"))
            for i, (chunk, generation) in enumerate(zip(plan.chunks, members, strict=True))
            if chunk.constrained and generation.mask is not None
        ]
        if not rows:
            return None
        num_words = -(-self.runner.vocab_size // 32)
        bitmask = np.zeros((len(rows), num_words * 4), np.uint8)
        for i, (_, packed) in enumerate(rows):
            bitmask[i, : len(packed)] = packed
        return TokenMask([chunk for chunk, _ in rows], bitmask.view(np.int32))

    def _collect(
        self,
        plan: StepPlan,
        launched: LaunchedStep,
        members: list[Generation],
        running: list[Generation],
    ) -> None:
        result = launched.collect()
        assert result.step_id == plan.step_id
        for chunk, generation, tokens in zip(plan.chunks, members, result.token_ids, strict=True):
            assert len(tokens) == (1 if chunk.samples else 0)
            generation.output += tokens
            if generation.finished and generation in running:
                running.remove(generation)
                self._release(generation)

    def _release(self, generation: Generation) -> None:
        """Give up the row and its blocks; shared ones stay with whoever they came from."""
        assert generation.row is not None
        self.released.append(generation.row)
        self.free_rows.append(generation.row)
        self.rng.shuffle(self.free_rows)
        generation.row, generation.computed, generation.blocks = None, 0, []
