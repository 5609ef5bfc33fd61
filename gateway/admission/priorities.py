"""The priority of a request, from its fields ``service_tier`` and ``priority``."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import Policy
from gateway.errors import InvalidRequestError, UnsupportedParameter

MAX_PRIORITY = 1_000_000
FLEX = 10
"""Steps that ``service_tier: "flex"`` goes back by."""


class Priorities:
    """Reads the two fields. A request can step back by itself; only the operator's
    ``models.service_tiers`` lets it step forward."""

    def __init__(self, tiers: Mapping[str, int], policy: Policy) -> None:
        self._tiers = {"default": 0, "flex": FLEX, **tiers}
        self._counts = policy != "fcfs"

    def tier(self, asked: str | None) -> str | None:
        """The tier that serves the request, if it asks for one: ``default`` in place of one that
        is not offered, as at OpenAI."""
        is_offered = self._counts and asked in self._tiers
        return asked if asked is None or is_offered else "default"

    def shift(self, tier: str | None, priority: int | None) -> int:
        """What to add to the priority of who asks; lower goes first."""
        if priority:
            if not self._counts:
                raise UnsupportedParameter(
                    "This server serves requests in the order of their arrival; leave this out.",
                    param="priority",
                )
            if not 0 <= priority <= MAX_PRIORITY:
                raise InvalidRequestError(
                    f"Must be from 0 to {MAX_PRIORITY}: a request can only step back, "
                    f"got {priority}.",
                    param="priority",
                )
        return (priority or 0) + (0 if tier is None else self._tiers[tier])
