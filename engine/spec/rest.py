"""Rests: a number of steps that run as if speculation were off, because drafts do not pay.

Nothing is asked or decided in them, and what they took is learned from once, at the end of the
rest."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from engine.spec.experience import STEPS_PER_UPDATE

if TYPE_CHECKING:
    from collections.abc import Mapping

# Each rest that was not cut short makes the next one twice as long, up to this many steps. Of a
# long rest only the last steps are timed.
_MAX_STEPS, _NUM_TIMED = 128, 12


class Rest:
    """The current rest, if there is one, and what its steps took."""

    def __init__(self) -> None:
        self.num_steps = 0
        """Steps of the rest still to be planned; 0: there is no rest."""
        self.batch = 0
        """Requests of the batch for which it began."""
        self.num_tokens: defaultdict[int, int] = defaultdict(int)
        """Tokens that its steps generated, by tokens per step, which usually is their batch."""
        self.num_passed = 0
        """Steps that are over and were not timed."""
        self._usual_length = STEPS_PER_UPDATE
        """Steps of a rest for which the caller set no number of its own."""
        self._overlaps = self._is_of_batch = False
        self._last = 0
        """What ``plan`` returned for the last step that is over."""
        self._seconds: dict[int, list[float]] = {}
        """Seconds of the timed steps, by batch, not taken yet."""

    def begin(self, num_steps: int, batch: int, *, overlaps: bool, is_of_batch: bool) -> None:
        """Begin a rest of ``num_steps``; ``STEPS_PER_UPDATE`` means as many as usual, 0 means none.

        overlaps: its steps are planned while another is in flight. is_of_batch: a step of another
        batch size, or with a prompt, ends it.
        """
        self.num_steps = self._usual_length if num_steps == STEPS_PER_UPDATE else num_steps
        self.batch, self._overlaps, self._is_of_batch = batch, overlaps, is_of_batch

    def end(self) -> None:
        """End the rest before its time, if there is one."""
        if self.num_steps:
            self.num_steps, self._usual_length = 0, STEPS_PER_UPDATE

    def pause(self) -> None:
        """The engine became idle."""
        self._last = 0
        if self._is_of_batch:
            self.end()

    def passes(self) -> bool:
        """Whether the step that is planned now belongs to the rest whatever it does, and is not to
        be timed. If so it is counted, and there is nothing else to do."""
        if self.num_steps <= _NUM_TIMED or self._is_of_batch:
            return False
        self.num_steps -= 1
        return True

    def plan(self, batch: int, *, is_plain: bool, overlaps: bool) -> int | None:
        """A step of ``batch`` requests is planned. is_plain: each of them computes one token.

        Returns what to pass to ``collect``: the batch, or 0 if its time will not be the usual one
        of such a batch. None if the step does not belong to the rest."""
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
        """A step that was planned is over. follower: the batch of the next step in flight if that
        only decodes, 0 if it does more; None if there is none."""
        # If steps overlap, the time from result to result is that of a step only if another one is
        # in flight, and if the host did not spend it on that one's prompts.
        is_whole = not self._overlaps if follower is None else follower > 0
        self.num_tokens[num_tokens] += num_tokens
        is_settled = planned == (self.batch if self._is_of_batch else self._last)
        if planned and is_whole and is_settled:
            self._seconds.setdefault(planned, []).append(seconds)
        self._last = planned

    def passed(self, num_tokens: int) -> None:
        """A step for which ``passes`` returned True is over."""
        self.num_tokens[num_tokens] += num_tokens
        self.num_passed += 1
        self._last = 0

    def take(self) -> tuple[Mapping[int, list[float]], Mapping[int, int], int]:
        """Returns and clears: the seconds of timed steps by batch, the tokens of all steps by
        tokens per step, and the number of steps that were not timed."""
        taken = self._seconds, self.num_tokens, self.num_passed
        self._seconds, self.num_tokens, self.num_passed = {}, defaultdict(int), 0
        return taken
