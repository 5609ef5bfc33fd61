"""The seed of a request that brought none."""

from __future__ import annotations

import hashlib


def request_seed(engine_seed: int, request_id: str) -> int:
    """64 bits that only the engine's seed and the request decide: a preemption changes nothing."""
    digest = hashlib.blake2b(
        request_id.encode(), digest_size=8, key=str(engine_seed).encode(), person=b"sampling"
    )
    return int.from_bytes(digest.digest(), "little")
