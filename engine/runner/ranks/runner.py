"""The runner of rank 0, which tells the other ranks whatever it is told."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path

from engine.adapters import AdapterMemory
from engine.lora.adapter import Adapter
from engine.lora.slots import AdapterSlots
from engine.runner.ranks.processes import RankProcesses
from engine.runner.ranks.records import (
    Collect,
    Draft,
    DropAdapter,
    Forward,
    KeepAdapter,
    Sample,
)
from engine.runner.runner import Sampled, TorchRunner
from engine.scheduler.plan import StepPlan, StepResult, TokenMask


class RankedRunner(TorchRunner):
    """Every rank samples the same tokens by itself, from the same logits."""

    _processes: RankProcesses
    _is_constrained = False
    """Whether the step that was launched last is."""

    def lead(self, processes: RankProcesses) -> None:
        """From now on each call is one of all ranks."""
        self._processes = processes
        processes.is_loaded = True
        weakref.finalize(self, processes.close)

    @property
    def adapter_memory(self) -> AdapterMemory | None:
        return None if self.adapters is None else _Adapters(self.adapters, self._processes)

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        # Other stages have to be told the drafts.
        wait |= self.stage.count > 1
        with self._processes.checked():
            self._processes.send(Draft(list(asked), num_tokens, wait))
            return super().draft(asked, num_tokens, wait=wait)

    def forward(self, plan: StepPlan) -> None:
        with self._processes.checked():
            self._processes.send(Forward(plan))
            self._is_constrained = plan.is_constrained
            super().forward(plan)

    def sample(self, mask: TokenMask | None) -> Sampled:
        with self._processes.checked():
            if self._is_constrained:
                self._processes.send(Sample.of(mask))
            else:
                assert mask is None, "a mask for a plan that is not constrained"
            return super().sample(mask)

    def _finish(self, step: Sampled) -> StepResult:
        with self._processes.checked():
            self._processes.send(Collect(), wake=False)
            return super()._finish(step)


class _Adapters:
    """The adapters of all ranks: what rank 0 keeps, every rank keeps its part of."""

    def __init__(self, slots: AdapterSlots, processes: RankProcesses) -> None:
        self._slots, self._processes = slots, processes

    @property
    def num_swaps(self) -> int:
        return self._slots.num_swaps

    def read(self, folder: Path) -> Adapter:
        return self._slots.read(folder)

    def keep(self, name: str, adapter: Adapter) -> None:
        self._processes.send(KeepAdapter.of(name, adapter))
        self._slots.keep(name, adapter)

    def drop(self, name: str) -> None:
        self._processes.send(DropAdapter(name))
        self._slots.drop(name)
