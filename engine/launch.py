"""What a client tells the engine process that it starts, besides messages."""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig

ABORTS_ENV = "SLUICE_REPLAY_ABORTS"
"""Names a file in which ``engine.replay`` notes each abort, on a line of its own: when it arrived
(``time.monotonic``), and whose."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a new engine process reads from the first line of its stdin, as JSON."""

    config: EngineConfig
    address: str
    """Where its owner waits for it."""
    shared_address: str | None = None
    """Where it lets other clients attach; None: it has no others."""
