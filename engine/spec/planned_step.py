"""A step as those know it who learn from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PlannedStep:
    """What was decided, to be learned from when it is over."""

    batch: int
    length: int
    """Drafts of the request that has most."""
    num_drafts: int
    began_s: float
    is_probe: bool = False
    only_decodes: bool = True
    """Every request computed its last token and its drafts, no more."""
    overlaps: bool = False
    """It was planned while another was in flight."""
    is_typical: bool = True
    """And the step before was like this one, so that there was nothing to make up for."""
    is_last: bool = False
    """It overlaps with the one before, but the next one waited for it: its time is only a part of
    what a step takes."""
    follows_probe: bool = False
    takes_up: bool = False
    """The first with drafts, after others where none were made."""
    num_tokens: int = 0
    """That its requests gained: fewer than were right, where an answer ended; 0 if not known."""
    was_awaited: bool = False
    """It was planned only when the step before was over, in the hope of drafts."""
    num_new: int = 0
    """Requests that came with it."""
    exposed_s: float = 0.0
    """From the end of the step before to its launch, when the device had nothing to do."""
    drafting_s: float = 0.0
    """Of that, to make its drafts."""
    num_like: int = 1
    """Steps that it stands for: those before it were like it, and nobody looked at them."""
    follows_others: bool = False
    """The step before did more than to decode."""

    @property
    def is_even(self) -> bool:
        return self.num_drafts == self.batch * self.length
