"""The runner of rank 0, which tells the other ranks whatever it is told."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from engine.runner.ranks.processes import RankProcesses
from engine.runner.ranks.records import Collect, Draft, Forward, Sample
from engine.runner.runner import Sampled, TorchRunner
from engine.scheduler.plan import StepPlan, StepResult, TokenMask


class RankedRunner(TorchRunner):
    """Every rank samples the same tokens by itself, from the same logits."""

    _processes: RankProcesses

    def lead(self, processes: RankProcesses) -> None:
        """From now on each call is one of all ranks."""
        self._processes = processes
        processes.is_loaded = True
        weakref.finalize(self, processes.close)

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        with self._processes.checked():
            self._processes.send(Draft(list(asked), num_tokens, wait))
            return super().draft(asked, num_tokens, wait=wait)

    def forward(self, plan: StepPlan) -> None:
        with self._processes.checked():
            self._processes.send(Forward(plan))
            super().forward(plan)

    def sample(self, mask: TokenMask | None) -> Sampled:
        with self._processes.checked():
            self._processes.send(Sample.of(mask))
            return super().sample(mask)

    def _finish(self, step: Sampled) -> StepResult:
        with self._processes.checked():
            self._processes.send(Collect(), wake=False)
            return super()._finish(step)
