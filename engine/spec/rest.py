"""Rests: a number of steps that run as if speculation were off, because drafts do not pay.

Nothing is asked or decided in them, and what they took is learned from once, at the end of the
rest."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST = 1024
"""Steps of a rest, at most."""
# Each rest that was not cut short makes the next one twice as long. Of a long rest only the last
# steps are timed.
_FIRST, _NUM_TIMED = 8, 12


class Rest:
    """The current rest, if there is one, and what its steps took."""

    def __init__(self) -> None:
        self.num_steps = 0
        """Steps of the rest still to be planned; 0: there is no rest."""
        self.least = self.most = 0
        """Requests of the batches for which it was begun."""
        self.is_of_batch = False
        """Whether a step of another batch, or with a prompt, ends it."""
        self.num_steps_at_probe = 0
        """Where ``num_steps`` is no more than this, a probe may be due."""
        self.num_tokens: defaultdict[int, int] = defaultdict(int)
        """Tokens that its steps generated, by tokens per step, which usually is their batch."""
        self.num_passed = 0
        """Steps that were not timed."""
        self._usual_length = _FIRST
        self._num_timed = 0
        """Steps at its end that are timed."""
        self._overlaps = False
        self._last = 0
        """What ``plan`` returned for the last step that is over."""
        self._seconds: dict[int, list[float]] = {}
        """Seconds of the timed steps, by batch, not taken yet."""

    def begin(self, num_steps: int, batch: int, *, overlaps: bool, is_of_batch: bool) -> None:
        """Begin a rest of as many steps as usual, but at most ``num_steps``; 0 means none.

        overlaps: its steps are planned while another is in flight. is_of_batch: a step of another
        batch size, or with a prompt, ends it; if not, batches of about this size belong to it.
        """
        self.num_steps, self.num_steps_at_probe = min(self._usual_length, num_steps), 0
        self._overlaps, self.is_of_batch = overlaps, is_of_batch
        self._num_timed = num_steps if is_of_batch else _NUM_TIMED
        self._accept(batch)

    def _accept(self, batch: int) -> None:
        """Let batches like this one belong to the rest. Costs are learned by powers of two."""
        self.least = self.most = batch
        if batch and not self.is_of_batch:
            self.most = 1 << (batch - 1).bit_length()
            self.least = self.most // 2 + 1

    def go_on(self, batch: int, num_steps: int) -> None:
        """Go on with a batch of another size, for at most ``num_steps``; 0 ends the rest."""
        if num_steps == 0:
            self.end()
        elif batch:
            self.num_steps = min(self.num_steps, num_steps)
            self._accept(batch)

    def expect_probe(self, num_steps: int, num_more: int) -> None:
        """A probe is due after ``num_steps``. ``num_more`` steps later the rest ends, at most."""
        self.num_steps = min(self.num_steps, max(num_steps + num_more, _FIRST))
        self.num_steps_at_probe = self.num_steps - num_steps

    def end(self) -> None:
        """End the rest before its time, if there is one."""
        if self.num_steps:
            self.num_steps, self._usual_length = 0, _FIRST

    def pause(self) -> None:
        """The engine became idle."""
        self._last = 0
        if self.is_of_batch:
            self.end()

    def passes(self, batch: int) -> bool:
        """Whether the step of ``batch`` requests that is planned now belongs to the rest whatever
        it does, and is not to be timed. If so it is counted, and there is nothing else to do."""
        if self.num_steps <= self._num_timed:
            return False
        self.num_steps -= 1
        self.num_passed += 1
        self.num_tokens[batch] += batch
        self._last = 0
        return True

    def plan(self, batch: int, *, is_plain: bool, overlaps: bool) -> int | None:
        """A step of ``batch`` requests is planned. is_plain: each of them computes one token.

        Returns what to pass to ``collect``: the batch, or 0 if its time will not be the usual one
        of such a batch. None if the step does not belong to the rest."""
        if not self.num_steps:
            return None
        is_usual = is_plain and overlaps == self._overlaps
        if self.is_of_batch and not (is_usual and batch == self.most):
            self.end()
            return None
        self.num_steps -= 1
        if not self.num_steps:
            self._usual_length = min(2 * self._usual_length, LONGEST)
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
        is_settled = planned == (self.most if self.is_of_batch else self._last)
        if planned and is_whole and is_settled:
            self._seconds.setdefault(planned, []).append(seconds)
        self._last = planned

    def take(self) -> tuple[Mapping[int, list[float]], Mapping[int, int], int]:
        """Returns and clears: the seconds of timed steps by batch, the tokens of all steps by
        tokens per step, and the number of steps that were not timed."""
        taken = self._seconds, self.num_tokens, self.num_passed
        self._seconds, self.num_tokens, self.num_passed = {}, defaultdict(int), 0
        return taken
