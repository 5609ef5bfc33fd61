"""One turn of a WebSocket session: its events, and what cancels it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.answers.turns import TurnEvents
from gateway.schemas import ws

_LAST = (b'{"type":"done"', b'{"type":"error"')


class Turn:
    """A turn that runs on a socket."""

    def __init__(self, message: ws.Chat | ws.Resume) -> None:
        self.message = message
        after_seq = message.last_seq if isinstance(message, ws.Resume) else -1
        self.encoder = TurnEvents(message.id, after_seq=after_seq)
        self._stop: Callable[[], None] | None = None
        self._cancelled = False

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """Have ``cancel`` call ``stop``, at once if it was called before."""
        self._stop = stop
        if self._cancelled:
            stop()

    def cancel(self) -> None:
        """Stop the turn because the client asked for it."""
        self._cancelled = True
        if self._stop is not None:
            self._stop()


def is_last(frame: bytes) -> bool:
    """Whether ``frame`` ends its turn. Frames begin with their type."""
    return frame.startswith(_LAST)
