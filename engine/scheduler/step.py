"""A step in flight: the one record of it, from its plan to its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.cache.manager import CacheManager
    from engine.cache.table import PrefixHit
    from engine.request import Request
    from engine.scheduler.plan import LaunchedStep, StepPlan, StepResult
    from engine.spec.costs import Noted


@dataclass(slots=True)
class Step:
    """A plan, with what the host alone knows about it. The scheduler makes and keeps it; the core
    adds what the runner and the speculator have of the step."""

    plan: StepPlan
    requests: list[Request] = field(default_factory=list)
    """The request of each chunk."""
    constrained: list[int] = field(default_factory=list)
    """Indices of the chunks that need a grammar mask before sampling."""
    computed_keys: list[bytes] = field(default_factory=list)
    """Keys of the prompt blocks that the step completes."""
    snapshots: list[tuple[Request, int, int]] = field(default_factory=list)
    """(request, number of tokens, snapshot) of the recurrent states that the step keeps."""
    picture_blocks: list[int] = field(default_factory=list)
    """Blocks of the encoder's cache that the step reads or writes."""
    swapped: list[Request] = field(default_factory=list)
    """Requests whose blocks the step copies to host memory."""
    num_tokens: int = 0
    num_drafts: int = 0
    planned_s: float = 0.0
    """When it was planned, by the scheduler's clock."""
    launched: LaunchedStep | None = None
    """The step as its runner knows it, once it was sampled."""
    noted: Noted | None = None
    """What the speculator learns from it when it is over, if anything."""

    def begin_states(self, cache: CacheManager, request: Request, hit: PrefixHit) -> None:
        """A request was admitted with this hit: its row begins with the state behind it."""
        for snapshot in cache.begin_states(request.block_table, hit, request.num_tokens):
            self.plan.state_loads.append((snapshot, request.row))

    def take_snapshots(self, cache: CacheManager, request: Request, start: int, end: int) -> None:
        """Plan what is to be kept of a request's state while it computes these tokens."""
        for num_tokens, snapshot in cache.take_snapshots(request.block_table, start, end):
            self.plan.state_saves.append((request.row, num_tokens, snapshot))
            self.snapshots.append((request, num_tokens, snapshot))

    def keep_snapshots(self, cache: CacheManager) -> None:
        """The step is over, and its blocks are published."""
        for request, num_tokens, snapshot in self.snapshots:
            cache.keep_snapshot(request.block_table, request.token_ids, num_tokens, snapshot)

    def keep_logprobs(self, result: StepResult) -> None:
        """Hand the computed log-probabilities to the requests that asked for them."""
        for index, found in result.logprobs.items():
            if (wanted := self.requests[index].logprobs) is not None:
                wanted.add(found)
        for index, found in result.prompt_logprobs.items():
            request = self.requests[index]
            if request.logprobs is not None:
                request.logprobs.add_prompt(self.plan.chunks[index].num_computed_tokens + 1, found)
                request.block_table.skip_reading = request.lacks_prompt_logprobs

    def keep_pooled(self, result: StepResult) -> list[Request]:
        """Hand the computed vectors and scores to their requests; returns those that wait for
        them."""
        pooled = [(self.requests[index], found) for index, found in result.pooled.items()]
        waiting = [(request, found) for request, found in pooled if not request.finished]
        for request, found in waiting:
            request.pooled = found
        return [request for request, _ in waiting]
