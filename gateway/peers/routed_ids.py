"""Ids that name the gateway worker that made them, so that any worker finds it without a look-up.

    resp_ 3f9c0d1e2b4a 8e1f…   kind, worker, 160 random bits

Only the random part is secret: it keeps tenants from guessing each other's ids.
"""

from __future__ import annotations

import re
import secrets

WORKER_CHARS = 12
_ID = re.compile(rf"[a-z]+_([0-9a-f]{{{WORKER_CHARS}}})[0-9a-f]{{40}}")


def new_worker_id() -> str:
    """A new id for one run of a worker."""
    return secrets.token_hex(WORKER_CHARS // 2)


def mint(kind: str, worker_id: str) -> str:
    return f"{kind}_{worker_id}{secrets.token_hex(20)}"


def worker_of(routed_id: str) -> str | None:
    """The worker that made the id; None when ``mint`` did not make it."""
    match = _ID.fullmatch(routed_id)
    return None if match is None else match[1]
