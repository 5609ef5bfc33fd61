"""The client of the engine as the settings want it."""

from __future__ import annotations

from collections.abc import Callable

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.messages import LoadProgress
from engine.transport import EngineProcess, OnExit, OnMessage, Transport
from gateway.config import Config


def make_engine_client(
    config: Config,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    transport: Callable[[EngineConfig, OnMessage, OnExit], Transport] = EngineProcess,
) -> EngineClient:
    """Not started yet. By default it spawns an engine process of its own."""
    server = config.server
    return EngineClient(
        config.engine,
        on_progress=on_progress,
        hang_timeout_s=server.engine_hang_timeout_s,
        max_unread_tokens=server.max_unread_tokens,
        stall_timeout_s=server.stall_timeout_s,
        transport=transport,
    )
