"""What a client tells the engine process that it starts, besides messages."""

from __future__ import annotations

import os
import sys

import msgspec

from engine.config import EngineConfig

ABORTS_ENV = "SLUICE_REPLAY_ABORTS"
"""Names a file in which ``engine.replay`` notes each abort, on a line of its own: when it arrived
(``time.monotonic``), and whose."""

IDLE_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
"""Environment in which CPU threads that wait sleep after about 20 µs, which is longer than the
threads of a step wait for each other. By default they spin on, on cores that the gateway needs:
with as many threads as cores, that costs up to 8 times the speed."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """CURVE keys in ZeroMQ's own notation (Z85)."""

    public: str
    secret: str
    peer: str
    """The public key of the other side: who has another one is refused."""

    def __repr__(self) -> str:
        return "Curve(...)"  # The secret must not get into a log.


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a new engine process reads from the first line of its stdin, as JSON."""

    config: EngineConfig
    address: str
    """Where its owner waits for it."""
    shared_address: str | None = None
    """Where it lets other clients attach; None: it has no others."""
    curve: Curve | None = None
    """Its keys towards those clients; None: they are on this host, and nothing is encrypted."""
    epoch: int = 0
    """As in ``Ready``."""
    follows_kill: bool = False
    """As in ``Ready``."""


def import_path() -> str:
    """``PYTHONPATH`` of a child that resolves imports exactly as this process does."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
