"""The runner of rank 0, which tells the other ranks whatever it is told."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from engine.runner.ranks.followers import Followers
from engine.runner.ranks.records import Collect, Draft, Forward, Sample
from engine.runner.runner import Sampled, TorchRunner
from engine.scheduler.plan import StepPlan, StepResult, TokenMask


class RankedRunner(TorchRunner):
    """Every rank samples the same tokens by itself, from the same logits."""

    _followers: Followers

    def lead(self, followers: Followers) -> None:
        """From now on each call is one of all ranks."""
        self._followers = followers
        followers.is_loaded = True
        weakref.finalize(self, followers.close)

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        with self._followers.checked():
            self._followers.send(Draft(list(asked), num_tokens, wait))
            return super().draft(asked, num_tokens, wait=wait)

    def forward(self, plan: StepPlan) -> None:
        with self._followers.checked():
            self._followers.send(Forward(plan))
            super().forward(plan)

    def sample(self, mask: TokenMask | None) -> Sampled:
        with self._followers.checked():
            self._followers.send(Sample.of(mask))
            return super().sample(mask)

    def _finish(self, step: Sampled) -> StepResult:
        with self._followers.checked():
            self._followers.send(Collect(), wake=False)
            return super()._finish(step)
