"""Whether drafts are made: a decision that should not change in every step."""

from __future__ import annotations

# Drafts must be faster by so much where they are made, as what is spared without them is certain;
# and where they are not, as going to and fro costs more than either.
MARGIN, _MARGIN_TO_BEGIN = 1.005, 1.03
# Where they are not, they must pay in so many steps in a row: a batch that is smaller for a moment,
# until the next request is let in, is no reason. Twice as many each time that they were given up
# after fewer steps than that.
_NUM_CONVINCING, _MAX_CONVINCING, _SHORT = 3, 96, 32


class Hysteresis:
    """Probes are no part of it."""

    def __init__(self) -> None:
        self.is_drafting = True
        """Drafts are made, or will be as soon as requests decode again."""
        self._num_drafted = 0
        """Steps with drafts since they were taken up."""
        self._num_needed = _NUM_CONVINCING
        self._is_tempted = self._is_refused = False
        """Drafts would pay in the step that is planned now, though they are not made; or would not.
        """
        self._num_tempted = 0
        """Steps in a row of which the former was so."""

    @property
    def margin(self) -> float:
        return MARGIN if self.is_drafting else _MARGIN_TO_BEGIN

    @property
    def is_tempted(self) -> bool:
        return self._is_tempted

    def allows_drafts(self) -> bool:
        """They pay in the step that is planned now: whether to make them."""
        if self.is_drafting:
            return True
        self._is_tempted = True
        return self._num_tempted >= self._num_needed

    def refuse(self) -> None:
        """They do not pay in the step that is planned now."""
        self._is_refused = True

    def planned(self, *, has_drafts: bool) -> None:
        """A step was. Without drafts, though they pay, it had no room for them."""
        self._num_tempted = self._num_tempted + 1 if self._is_tempted else 0
        if self._is_refused and self.is_drafting and not has_drafts:
            self._give_up()
        self._is_tempted = self._is_refused = False

    def drafted(self, num_steps: int = 1) -> None:
        """So many steps had drafts."""
        self.is_drafting = True
        self._num_tempted = 0
        self._num_drafted += num_steps

    def _give_up(self) -> None:
        self.is_drafting = False
        in_vain = self._num_drafted < _SHORT
        self._num_needed = (
            min(2 * self._num_needed, _MAX_CONVINCING) if in_vain else _NUM_CONVINCING
        )
        self._num_drafted = 0
