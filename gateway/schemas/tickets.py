"""The answer of ``POST /v1/ws-tickets``."""

from __future__ import annotations

import msgspec


class WsTicket(msgspec.Struct, frozen=True, kw_only=True):
    ticket: str
    """The value for the query parameter ``ticket`` of the WebSocket's URL."""
    expires_at: int
    """Unix time, in seconds."""
    object: str = "ws_ticket"
