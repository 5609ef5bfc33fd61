"""Steps that run as if there were no drafts at all, as drafts do not pay: nobody asks for any, and
what the steps teach is looked at once, when the rest is over."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from engine.spec.experience import STEPS_PER_UPDATE

if TYPE_CHECKING:
    from collections.abc import Mapping

# Each rest that was not cut short makes the next one twice as long, up to so many steps. What the
# last ones take will do to learn from.
_MAX_STEPS, _NUM_TIMED = 128, 12


class Rest:
    """The present one, if there is one."""

    def __init__(self) -> None:
        self.num_steps = 0
        """Still to come."""
        self.batch = 0
        self.num_tokens: defaultdict[int, int] = defaultdict(int)
        """That its steps gave, by how many a step gave: its batch, as a rule."""
        self.num_passed = 0
        """Steps of it that are over, and were not timed."""
        self._usual_length = STEPS_PER_UPDATE
        self._overlaps = self._is_of_batch = False
        self._last = 0
        """As ``plan`` returned for the last step that is over."""
        self._seconds: dict[int, list[float]] = {}
        """By the batch: of steps without drafts that are over, nothing was learned yet."""

    def begin(self, num_steps: int, batch: int, *, overlaps: bool, is_of_batch: bool) -> None:
        """Of so many steps, or of more if that is what it ``STEPS_PER_UPDATE`` for; none: it does
        not begin. overlaps: its steps do as a rule. is_of_batch: another batch, or a prompt, ends
        it."""
        self.num_steps = self._usual_length if num_steps == STEPS_PER_UPDATE else num_steps
        self.batch, self._overlaps, self._is_of_batch = batch, overlaps, is_of_batch

    def end(self) -> None:
        """Before its time."""
        if self.num_steps:
            self.num_steps, self._usual_length = 0, STEPS_PER_UPDATE

    def pause(self) -> None:
        """The engine has nothing to do for a while."""
        self._last = 0
        if self._is_of_batch:
            self.end()

    def passes(self) -> bool:
        """A step is planned that is a part of the rest whatever it does, and that nothing is to be
        learned of but its tokens; if so, that is all there is to do."""
        if self.num_steps <= _NUM_TIMED or self._is_of_batch:
            return False
        self.num_steps -= 1
        return True

    def plan(self, batch: int, *, is_plain: bool, overlaps: bool) -> int | None:
        """A step is planned, of so many requests. is_plain: each of them computes one token.

        None if it is no part of the rest; if it is, what to pass to ``collect``: the batch, or 0
        if it takes longer or shorter than others of that batch.
        """
        if not self.num_steps:
            return None
        is_usual = is_plain and overlaps == self._overlaps
        if self._is_of_batch and not (is_usual and batch == self.batch):
            self.end()
            return None
        self.num_steps -= 1
        if not self.num_steps:
            self._usual_length = min(2 * self._usual_length, _MAX_STEPS)
        return batch if is_usual else 0

    def collect(
        self, planned: int, seconds: float, num_tokens: int, *, follower: int | None
    ) -> None:
        """A step is over. follower: the batch of the next one in flight if that only decodes, 0 if
        not; None if there is none."""
        # Of the last one of those that overlap, the time is only a part of what a step takes; and
        # what the host does for the prompts of the next one is a part of it.
        is_whole = not self._overlaps if follower is None else follower > 0
        self.num_tokens[num_tokens] += num_tokens
        is_settled = planned == (self.batch if self._is_of_batch else self._last)
        if planned and is_whole and is_settled:
            self._seconds.setdefault(planned, []).append(seconds)
        self._last = planned

    def passed(self, num_tokens: int) -> None:
        """A step of which ``passes`` was true is over."""
        self.num_tokens[num_tokens] += num_tokens
        self.num_passed += 1
        self._last = 0

    def take(self) -> tuple[Mapping[int, list[float]], Mapping[int, int], int]:
        """What steps took, and the tokens that all steps gave, by their batch, and how many were
        not timed; to be told once."""
        taken = self._seconds, self.num_tokens, self.num_passed
        self._seconds, self.num_tokens, self.num_passed = {}, defaultdict(int), 0
        return taken
