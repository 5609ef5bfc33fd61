"""Rate limits as pure arithmetic: a bucket that refills continuously, in whole numbers.

What is kept is how much is used, in units of which one request or token has ``UNIT``: as many as a
minute has microseconds. So a limit of ``n`` per minute gives back exactly ``n`` units in each
microsecond, and nothing is ever rounded. An empty bucket is ``used == 0``; debt is ``used`` above
the capacity, and is paid off like everything else.

This is the generic cell rate algorithm (ITU-T I.371, virtual scheduling) with a burst of a whole
minute's limit: within any ``t`` minutes no more than ``n * (1 + t)`` are admitted, and nothing that
fits under that is refused. The same arithmetic stands in SQL in the migrations.
"""

from __future__ import annotations

UNIT = 60_000_000
"""Units of one request or token: microseconds in a minute."""
MAX_PER_MINUTE = 2**31 - 1
MAX_USED = 4 * 10**18
"""The largest debt, so that it fits into 64 bits."""


def refilled(used: int, per_minute: int, elapsed_us: int) -> int:
    """What is still used after some time; time that runs backwards gives nothing back."""
    return max(0, used - per_minute * max(0, elapsed_us))


def wait_us(used: int, amount: int, per_minute: int) -> int | None:
    """Microseconds until ``amount`` fits; 0 if it does now, None if it never will."""
    if amount > per_minute:
        return None
    excess = used + amount * UNIT - per_minute * UNIT
    return -(-max(0, excess) // per_minute)


def charged(used: int, amount: int) -> int:
    """Take ``amount``, into debt if need be; a negative amount is given back."""
    return min(MAX_USED, max(0, used + amount * UNIT))


def remaining(used: int, per_minute: int) -> int:
    """How many whole requests or tokens fit now."""
    return max(0, per_minute * UNIT - used) // UNIT


def reset_us(used: int, per_minute: int) -> int:
    """Microseconds until the whole limit is there again."""
    return -(-used // per_minute)
