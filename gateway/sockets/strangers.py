"""WebSockets that have not authenticated yet: only so many of one address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gateway.errors import RateLimited
from gateway.transport.connections import network_of


class Strangers:
    """Counts the unauthenticated WebSockets of each address."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def enter(self, address: str) -> Callable[[], None]:
        """Count one more; returns the function that ends that, once however often it is called.

        Raises ``RateLimited`` if the address has too many.
        """
        network = network_of(address)
        if self._open[network] >= self._most:
            raise RateLimited(
                f"{self._most} WebSockets from {address} have not authenticated yet; send auth on "
                "them, or the key with the handshake.",
                retry_after_s=1,
            )
        self._open[network] += 1
        is_inside = True

        def leave() -> None:
            nonlocal is_inside
            if is_inside:
                is_inside = False
                self._open[network] -= 1
                if not self._open[network]:
                    del self._open[network]

        return leave
