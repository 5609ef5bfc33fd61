"""Whether a draft network drafts: a decision that should not change in every step.

A network that has not drafted for a while must first compute its keys of all tokens since. So the
decision changes only once the loss by the present one, in expected time, has added up to what the
change costs.
"""

from __future__ import annotations

# Steps with drafts must be faster by this factor: their gain is an estimate, their cost is certain.
MARGIN = 1.02
# The decision changes once the loss by it adds up to this part of a step without drafts. To begin
# to draft, the loss must also reach the cost of catching up, which is the best strategy without
# knowledge of the future ("ski rental"). Each time that drafting was given up again before it had
# gained as much, that threshold doubles, up to the given factor.
_ENOUGH, _MAX_FACTOR = 0.06, 32
# At first only the priors are known. So until drafts were verified this many times, in this many
# steps, they may lose as many steps as this.
_NUM_TRIED, _MIN_STEPS, _PATIENCE = 64, 4, 8.0
# The weight of the latest measurement of what beginning to draft costs; and its bounds, in steps
# and as a multiple of the estimate, because what is done for the first time may take far longer.
_SHARE, _MAX_COST, _MAX_TIMES = 0.3, 4.0, 2.0
# If all requests of the batch are new, this part of the threshold is enough: there is little to
# catch up with.
_NEW_SHARE = 0.25
# But if more than twice as many requests come at once as there were, the gain must be this clear:
# what was learned is of smaller batches, and as many again may come in the next step.
_CLEAR_GAIN = 1.15
# A step with drafts counts as no worse than this.
_LEAST_GAIN = 0.5
# The most that a step adds to the loss, in steps.
_MAX_STEP = 0.5
# Drafts must pay in this many steps in a row. A batch that is smaller for a moment, until the next
# request is admitted, is no reason.
_NUM_CONVINCING = 3


class Hysteresis:
    """Sums up what the present decision loses. Probes count as steps without drafts."""

    def __init__(self) -> None:
        self.is_drafting = True
        """Whether requests that decode get drafts."""
        self._lost = 0.0
        """What the present decision has lost, in steps without drafts."""
        self._cost = 0.0
        """What it costs to begin to draft, in steps without drafts."""
        self._factor = 1
        """Multiplies the threshold to begin to draft."""
        self._num_drafted = 0
        """Steps with drafts since drafting began."""
        self._gained = 0.0
        """What they gained, in steps without drafts."""
        self._num_tried = 0
        """Times that drafts of a request were verified."""
        self._is_first = True
        """Drafting was never given up."""
        self._last_batch = 0
        """Requests of the last step without newcomers."""
        self._num_tempted = 0
        """Steps in a row without drafts in which they would have paid."""

    def planned(
        self,
        gain: float,
        *,
        has_drafts: bool,
        has_newcomers: bool = False,
        is_new: bool = False,
        num_steps: int = 1,
        batch: int = 1,
        num_tokens: float = 1.0,
    ) -> None:
        """``num_steps`` steps of ``batch`` requests were planned, which according to the estimates
        are ``gain`` times as fast with drafts as without. num_tokens: that each request gets from
        such a step with drafts.

        has_newcomers: requests were admitted with them; such steps do not add to the reasons to
        begin to draft. is_new: all requests of the batch were, so there are no others to catch up
        with."""
        if has_drafts:
            self._num_drafted += num_steps
            self._num_tried += num_steps * batch
            # Such a step takes as long as ``num_tokens / gain`` without drafts.
            self._gained += num_steps * num_tokens * (1 - 1 / max(gain, _LEAST_GAIN))
        if not has_newcomers:
            self._last_batch = batch
        is_burst = is_new and batch > 2 * self._last_batch > 0 and gain < _CLEAR_GAIN
        more = num_steps * min(gain - MARGIN, _MAX_STEP)
        if self.is_drafting:
            if is_burst and not self._is_first:
                self._give_up()
                return
            self._lost = max(0.0, self._lost - more)
            if self._lost > self._borne:
                self._give_up()
            return
        if has_newcomers:
            if is_new and not is_burst and gain > MARGIN and self._lost > _NEW_SHARE * self._needed:
                self._take_up()
            return
        self._lost = max(0.0, self._lost + more)
        self._num_tempted = self._num_tempted + num_steps if more > 0 else 0
        if self._lost > self._needed and self._num_tempted >= _NUM_CONVINCING:
            self._take_up()

    @property
    def is_trial(self) -> bool:
        """Whether drafts are made in order to learn about them, whatever their expected gain."""
        is_known = self._num_tried >= _NUM_TRIED and self._num_drafted >= _MIN_STEPS
        return self._is_first and not is_known

    @property
    def _borne(self) -> float:
        """What drafts may lose, in steps, until drafting is given up."""
        return _PATIENCE if self.is_trial else _ENOUGH

    @property
    def _needed(self) -> float:
        """What not drafting must have lost, in steps, until drafting begins."""
        return self._factor * max(_ENOUGH, self._cost)

    def num_steps_left(self, gain: float) -> int:
        """Steps with this ``gain`` until drafting begins; 0 if they do not bring it nearer."""
        more = min(gain - MARGIN, _MAX_STEP)
        return int(max(0.0, self._needed - self._lost) / more) if more > 0 else 0

    @property
    def takes_up(self) -> bool:
        """Whether the next step with drafts is the first one since drafting began."""
        return self._num_drafted == 0

    def took_up(self, cost: float) -> None:
        """The first step with drafts is over. cost: by how much it took longer than usual, in steps
        without drafts."""
        cost = min(cost, max(_MAX_COST, _MAX_TIMES * self._cost))
        self._cost += _SHARE * (max(0.0, cost) - self._cost)

    def _take_up(self) -> None:
        self.is_drafting = True
        self._lost = 0.0
        self._num_tempted = self._num_drafted = 0
        self._gained = 0.0

    def _give_up(self) -> None:
        self.is_drafting = self._is_first = False
        self._lost = 0.0
        if self._gained > max(_ENOUGH, self._cost):
            self._factor = 1
        elif self._num_drafted:
            self._factor = min(2 * self._factor, _MAX_FACTOR)
