"""A waiting request that need not wait until those before it, and those who run, are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from engine.request import Request


class Claim(NamedTuple):
    """What a policy decided for one waiting request."""

    request: Request
    victims: Iterable[Request]
    """The running requests that give way if room is short, the first to go in front."""
    at_once: bool
    """Whether it need not leave room for what the running requests may need later."""
    slot_users: Sequence[Request] = ()
    """The running requests whose adapter slot it takes: all of them give way in any case."""
