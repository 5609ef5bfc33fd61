"""What is remembered of a step, from its plan to its result, in order to learn from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class PlannedStep:
    """A step, as the speculator planned it. Times are of the speculator's clock."""

    batch: int
    """Its requests."""
    length: int
    """Drafts of the request that has the most."""
    num_drafts: int
    """Drafts of all requests."""
    began_s: float
    """When the core began to plan it or, where steps follow each other without a pause, the first
    of them."""
    is_probe: bool = False
    """It has drafts only to learn about them."""
    only_decodes: bool = True
    """Every request computed its last known token and its drafts, and no more: no prompts."""
    overlaps: bool = False
    """It was planned while another step was in flight."""
    is_typical: bool = True
    """It only decodes, and so did the step before, with as many drafts: its time is the usual
    one."""
    is_last: bool = False
    """It overlaps with the step before, but the next one was planned only when it was over. So the
    time from result to result is less than a whole step."""
    follows_probe: bool = False
    """The step before was a probe, and this one is not."""
    takes_up: bool = False
    """It is the first with drafts after steps without: a network catches up in it."""
    num_tokens: int = 0
    """Tokens that its requests got: fewer than were accepted where a request ended; 0: unknown."""
    was_awaited: bool = False
    """It was planned only when the step before was over, although steps could overlap, because
    drafts were expected."""
    num_new: int = 0
    """Requests that were admitted with it."""
    exposed_s: float = 0.0
    """Seconds from the end of the step before to its launch, in which the device was idle."""
    drafting_s: float = 0.0
    """The part of ``exposed_s`` in which its drafts were made."""
    num_like: int = 1
    """Steps that it stands for: itself, and similar ones before it that were not looked at."""
    like: Mapping[int, int] = field(default_factory=dict)
    """Requests of these others, summed up by the size of the batch, rounded up to a power of
    two."""
    follows_others: bool = False
    """The step before did more than decode."""

    @property
    def is_uniform(self) -> bool:
        """Whether every request has the same number of drafts."""
        return self.num_drafts == self.batch * self.length
