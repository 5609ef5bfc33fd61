"""Whether drafts are made: a decision that should not change in every step."""

from __future__ import annotations

# Drafts must be faster by so much, as what is spared without them is certain.
MARGIN = 1.02
# The decision changes once what is lost by it adds up to this part of a step without drafts. To
# take drafts up it must be no less than what that costs, which is the best that can be done without
# a look into the future ("ski rental"); and twice as much each time that they were given up after
# fewer steps than that.
_ENOUGH, _SHORT, _MAX_FACTOR = 0.06, 32, 32
# To begin with, nothing is known of drafts but what the first texts say, and a probe says little.
# So until drafts were checked so many times, in so many steps, this may be lost by them.
_NUM_TRIED, _MIN_STEPS, _PATIENCE = 64, 4, 8.0
# What the latest taking up says of what the next one costs; and at most so many steps, or so many
# times as much as is known, as what is done for the first time may take far longer.
_SHARE, _MAX_COST, _MAX_TIMES = 0.3, 4.0, 2.0
# Where nobody but newcomers runs, so much less must have been lost to take drafts up.
_NEW_SHARE = 0.25
# What a step counts for, at most.
_MAX_STEP = 0.5
# And so many steps in a row: a batch that is smaller for a moment, until the next request is let
# in, is no reason.
_NUM_CONVINCING = 3


class Hysteresis:
    """Probes are no part of it."""

    def __init__(self) -> None:
        self.is_drafting = True
        """Drafts are made, or will be as soon as requests decode again."""
        self._lost = 0.0
        """By the decision as it is, in steps without drafts."""
        self._cost = 0.0
        """Of taking drafts up, in steps without drafts."""
        self._factor = 1
        self._num_drafted = 0
        """Steps with drafts since they were taken up."""
        self._num_tried = 0
        """Times that drafts were checked, of all requests."""
        self._is_first = True
        """They were never given up."""
        self._num_tempted = 0
        """Steps in a row in which drafts would have paid, though they are not made."""

    def planned(
        self,
        gain: float,
        *,
        has_drafts: bool,
        has_newcomers: bool = False,
        is_new: bool = False,
        num_steps: int = 1,
        batch: int = 1,
    ) -> None:
        """So many steps were, of a batch that is ``gain`` times as fast with drafts as without, as
        far as is known. Where newcomers make the batch another one, that convinces nobody; but
        where there is nobody else (is_new), no drafts have to catch up with other requests.
        batch: of how many requests."""
        if has_drafts:
            self._num_drafted += num_steps
            self._num_tried += num_steps * batch
        more = num_steps * min(gain - MARGIN, _MAX_STEP)
        if self.is_drafting:
            self._lost = max(0.0, self._lost - more)
            if self._lost > self._borne:
                self._give_up()
            return
        if has_newcomers:
            if is_new and gain > MARGIN and self._lost > _NEW_SHARE * self._needed:
                self._take_up()
            return
        self._lost = max(0.0, self._lost + more)
        self._num_tempted = self._num_tempted + num_steps if more > 0 else 0
        if self._lost > self._needed and self._num_tempted >= _NUM_CONVINCING:
            self._take_up()

    @property
    def is_trial(self) -> bool:
        """Drafts are made to learn of them, whatever they are said to gain."""
        is_known = self._num_tried >= _NUM_TRIED and self._num_drafted >= _MIN_STEPS
        return self._is_first and not is_known

    @property
    def _borne(self) -> float:
        """What drafts may lose until they are given up."""
        return _PATIENCE if self.is_trial else _ENOUGH

    @property
    def _needed(self) -> float:
        return self._factor * max(_ENOUGH, self._cost)

    def num_steps_left(self, gain: float) -> int:
        """Steps of a batch for which drafts would pay, until they are taken up."""
        more = min(gain - MARGIN, _MAX_STEP)
        return int(max(0.0, self._needed - self._lost) / more) if more > 0 else 0

    @property
    def takes_up(self) -> bool:
        """Whether the next step with drafts is the first since others had none."""
        return self._num_drafted == 0

    def took_up(self, cost: float) -> None:
        """In that step so much was lost, in steps without drafts."""
        cost = min(cost, max(_MAX_COST, _MAX_TIMES * self._cost))
        self._cost += _SHARE * (max(0.0, cost) - self._cost)

    def _take_up(self) -> None:
        self.is_drafting = True
        self._lost = 0.0
        self._num_tempted = self._num_drafted = 0

    def _give_up(self) -> None:
        self.is_drafting = self._is_first = False
        self._lost = 0.0
        if self._num_drafted >= _SHORT:
            self._factor = 1
        elif self._num_drafted:
            self._factor = min(2 * self._factor, _MAX_FACTOR)
