"""When a request reached which stage: for its metrics, its spans and its line in the access log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Times:
    """In seconds of ``time.monotonic``."""

    began_at: float
    first_token_at: float | None = None
    ended_at: float | None = None
    """When its answer was complete or given up."""
    queue_s: float = 0.0
    """How long it waited in the engine; known with its first token."""
    num_moves: int = 0
    """How often it went on at another engine, or at the same after its restart."""
