"""The interface of scheduling policies: who is admitted next, who gives way, who is charged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from engine.scheduler.fair_share import FairSharePolicy
from engine.scheduler.fcfs import FcfsPolicy
from engine.scheduler.priority import PriorityPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from engine.config import EngineConfig
    from engine.request import Request
    from engine.scheduler.claim import Claim


class SchedulingPolicy(Protocol):
    """Owns the waiting requests and ranks the running ones. No method may be O(waiting)."""

    def __len__(self) -> int:
        """Requests waiting."""

    def enqueue(self, request: Request) -> None:
        """A request arrives, or comes back after a preemption and keeps its place."""

    def dequeue(self, request: Request) -> None:
        """A waiting request ends, or is set aside."""

    def admit(self, request: Request) -> None:
        """A waiting request is admitted."""

    def leave(self, request: Request) -> None:
        """A running request ends or is set aside. One that is preempted was enqueued before."""

    @property
    def is_contended(self) -> bool:
        """Whether the order in which running requests share a step's tokens matters."""

    def head(self) -> Request | None:
        """The waiting request to admit next. It stays in the queue."""

    def ranked(self, running: Iterable[Request]) -> list[Request]:
        """The running requests: the first is served first, the last is the first to give way.

        Asked only when blocks are short; the argument is in the order of admission.
        """

    def by_service(self, running: Iterable[Request]) -> list[Request]:
        """The running requests in the order in which they share the tokens of a step. Asked only
        while ``is_contended``."""

    def claims(self, running: Iterable[Request]) -> Iterator[Claim]:
        """The waiting requests that need not wait until others are done, the first to be admitted
        in front."""

    def charge_prompt(self, request: Request, num_computed: int, num_cached: int) -> None:
        """Prompt tokens were scheduled for the first time, or found in the prefix cache."""

    def charge_output(self, request: Request, num_tokens: int) -> None:
        """Generated tokens were accepted."""

    def spread(self) -> float:
        """The largest difference in charged service between two tenants that wait in one class."""


def create_policy(
    config: EngineConfig,
    prefix_match: Callable[[Request], int],
    num_blocks: int,
    num_groups: int = 1,
) -> SchedulingPolicy:
    """The policy that ``config.policy`` names.

    ``prefix_match`` says how many tokens of a waiting request are in the prefix cache now.
    num_blocks: of the cache, for so many layer groups.
    """
    match config.policy:
        case "fcfs":
            return FcfsPolicy()
        case "priority":
            return PriorityPolicy(config.priority_aging_s)
        case "fair_share":
            return FairSharePolicy(config, prefix_match, num_blocks, num_groups)
