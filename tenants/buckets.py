"""Rate limits as pure arithmetic: a bucket that refills continuously, in whole numbers.

The state is how much is used, in units: one request or token has ``UNIT`` of them, as many as a
minute has microseconds. So a limit of ``n`` per minute gives back exactly ``n`` units in each
microsecond, and nothing is ever rounded. ``used`` is 0 if the whole limit is available. If it is
above the limit, the difference is debt, which is paid off in the same way.

This is the generic cell rate algorithm (ITU-T I.371, virtual scheduling) with a burst of the limit
of a whole minute: within any ``t`` minutes at most ``n * (1 + t)`` are admitted, and nothing that
stays within that is refused. The migrations have the same arithmetic in SQL.
"""

from __future__ import annotations

UNIT = 60_000_000
"""Units of one request or token: microseconds in a minute."""
MAX_PER_MINUTE = 2**31 - 1
MAX_USED = 4 * 10**18
"""The largest debt, so that it fits into 64 bits."""


def refilled(used: int, per_minute: int, elapsed_us: int) -> int:
    """``used`` after some time. A negative time gives nothing back."""
    return max(0, used - per_minute * max(0, elapsed_us))


def wait_us(used: int, amount: int, per_minute: int) -> int | None:
    """Microseconds until ``amount`` requests or tokens fit; 0 if they do now, None if they never
    will."""
    if amount > per_minute:
        return None
    excess = used + amount * UNIT - per_minute * UNIT
    return -(-max(0, excess) // per_minute)


def charged(used: int, amount: int) -> int:
    """``used`` after taking ``amount``, into debt if need be. A negative amount is given back."""
    return min(MAX_USED, max(0, used + amount * UNIT))


def remaining(used: int, per_minute: int) -> int:
    """How many whole requests or tokens fit now."""
    return max(0, per_minute * UNIT - used) // UNIT


def reset_us(used: int, per_minute: int) -> int:
    """Microseconds until the whole limit is available again."""
    return -(-used // per_minute)
