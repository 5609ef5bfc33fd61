"""How often a text proposer finds drafts that it did not foresee.

Where it foresees none, the next step is planned while one is in flight, and drafts that follow the
token of that one come a step late. To wait for the token instead costs the host's work, which was
hidden otherwise: about half a step of a model that is small enough for either to matter."""

from __future__ import annotations

_LIKELY = 0.5
_SHARE = 1 / 8
"""Weight of the latest time."""


class Surprises:
    def __init__(self) -> None:
        self._share = 0.0
        """Of the times when nothing was foreseen, those when drafts were found."""
        self._is_open = False

    @property
    def are_likely(self) -> bool:
        return self._share > _LIKELY

    def begin(self) -> None:
        """Nothing is foreseen."""
        self._is_open = True

    def end(self, *, found: bool) -> None:
        """The token that was in flight is known. found: drafts follow it."""
        if self._is_open:
            self._share += _SHARE * (found - self._share)
            self._is_open = False
