"""Aborts, parks and grants of running requests, from the client's side."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import EngineDead, QueueFull
from engine.messages import (
    AbortRequest,
    ClientMessage,
    Grant,
    GrantTokens,
    ParkRequest,
    UnparkRequest,
)


class RequestUpdates:
    """Sends each update at once. While the engine takes none, the latest of each request wait here
    for ``flush``. No method blocks or raises."""

    def __init__(self, send: Callable[[ClientMessage], None]) -> None:
        """``send`` raises ``EngineDead`` while none runs, ``QueueFull`` if it reads nothing."""
        self._send = send
        self._aborts: set[str] = set()
        self._parks: dict[str, bool] = {}
        """By request id: True to park, False to go on."""
        self._grants: dict[str, Grant] = {}

    def __len__(self) -> int:
        """Updates that wait."""
        return len(self._aborts) + len(self._parks) + len(self._grants)

    def abort(self, request_id: str) -> None:
        self._aborts.add(request_id)
        self._flush_aborts()

    def park(self, request_id: str) -> None:
        self._parks[request_id] = True
        self._flush_parks()

    def unpark(self, request_id: str) -> None:
        self._parks[request_id] = False
        self._flush_parks()

    def grant(self, grant: Grant) -> None:
        self._grants[grant.request_id] = grant
        self._flush_grants()

    def flush(self) -> None:
        """Try again to send what waits."""
        self._flush_aborts()
        self._flush_parks()
        self._flush_grants()

    def forget(self, request_id: str) -> None:
        """The request has ended: only an abort of it may still be sent, which does no harm."""
        self._parks.pop(request_id, None)
        self._grants.pop(request_id, None)

    def clear(self) -> None:
        """The engine has died, and all requests with it."""
        self._aborts.clear()
        self._parks.clear()
        self._grants.clear()

    def _flush_aborts(self) -> None:
        if self._aborts and self._try_to_send(AbortRequest(list(self._aborts))):
            self._aborts.clear()

    def _flush_parks(self) -> None:
        messages: list[ClientMessage] = []
        for park, message in ((True, ParkRequest), (False, UnparkRequest)):
            if names := [name for name, wanted in self._parks.items() if wanted is park]:
                messages.append(message(names))
        if messages and self._try_to_send(*messages):  # Sending one twice does no harm.
            self._parks.clear()

    def _flush_grants(self) -> None:
        if self._grants and self._try_to_send(GrantTokens(list(self._grants.values()))):
            self._grants.clear()

    def _try_to_send(self, *messages: ClientMessage) -> bool:
        """Whether all messages were sent."""
        try:
            for message in messages:
                self._send(message)
        except (EngineDead, QueueFull):
            return False
        return True
