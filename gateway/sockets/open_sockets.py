"""How many WebSockets may be open at once: of one address those that have not authenticated yet,
and all of one tenant, so that nobody has all connections of a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gateway.errors import RateLimited


class OpenSockets:
    """Counts the WebSockets of each owner."""

    def __init__(self, most: int, refusal: str) -> None:
        """refusal: the error's text, with ``{most}`` and ``{owner}``."""
        self._most = most
        self._refusal = refusal
        self._open: Counter[str] = Counter()

    def enter(self, owner: str) -> Callable[[], None]:
        """Count one more; returns the function that ends that, once however often it is called.

        Raises ``RateLimited`` if the owner has too many.
        """
        if self._open[owner] >= self._most:
            raise RateLimited(self._refusal.format(most=self._most, owner=owner), retry_after_s=1)
        self._open[owner] += 1
        is_inside = True

        def leave() -> None:
            nonlocal is_inside
            if is_inside:
                is_inside = False
                self._open[owner] -= 1
                if not self._open[owner]:
                    del self._open[owner]

        return leave


def of_strangers(most: int) -> OpenSockets:
    """By address."""
    return OpenSockets(
        most,
        "{most} WebSockets from {owner} have not authenticated yet; send auth on them, or the key "
        "with the handshake.",
    )


def of_tenants(max_connections: int) -> OpenSockets:
    """By tenant: half of all connections."""
    return OpenSockets(
        max(1, max_connections // 2),
        "{most} WebSockets of your tenant are open, half of this server's connections; close some, "
        "or run several turns on each.",
    )
