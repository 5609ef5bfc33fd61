"""Makes ids of requests: UUIDs that begin with the time (RFC 9562, version 7).

So the ledger can keep those of a month together, and forget them together. The other 74 bits are
random: nobody can guess the id of another's request.
"""

from __future__ import annotations

import secrets
import time
from uuid import UUID


def new_request_id() -> UUID:
    milliseconds = time.time_ns() // 1_000_000 & (1 << 48) - 1
    first, second = secrets.randbits(12), secrets.randbits(62)
    return UUID(int=milliseconds << 80 | 7 << 76 | first << 64 | 2 << 62 | second)
