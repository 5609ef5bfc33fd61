"""What HTTP and WebSocket connections have in common: deadlines, refusals, and their evictions."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Protocol
from uuid import uuid4

from gateway.errors import ApiError


class Deadline:
    """Aborts a connection, unless it is stopped in time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Abort ``transport`` after the time, counted from now."""
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, transport.abort)

    def ensure_started(self, transport: asyncio.Transport) -> None:
        """As ``start``, but let a deadline that has been started run on."""
        if self._timer is None:
            self.start(transport)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Evictable(Protocol):
    """A connection on which no request with a good key is being answered."""

    def evict(self) -> None:
        """Close the connection for another one."""


class EvictionQueue:
    """Who leaves when all connections of a worker are taken and one more comes.

    It is one of the address that has the most, and of these the one that has been there longest. So
    nobody keeps others out with connections that send nothing, or no key.
    """

    def __init__(self) -> None:
        self._queues: dict[str, dict[Evictable, None]] = {}
        """By network; those of each in the order in which they came."""
        self._ranks: list[dict[str, None]] = []
        """The networks that have at least one connection, at least two, and so on."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, connection: Evictable, network: str) -> None:
        queue = self._queues.setdefault(network, {})
        if connection not in queue:
            queue[connection] = None
            if len(queue) > len(self._ranks):
                self._ranks.append({})
            self._ranks[len(queue) - 1][network] = None

    def remove(self, connection: Evictable, network: str) -> None:
        """Nothing happens if it is not in the queue."""
        queue = self._queues.get(network)
        if queue is None or connection not in queue:
            return
        del self._ranks[len(queue) - 1][network]
        if not self._ranks[-1]:
            self._ranks.pop()
        del queue[connection]
        if not queue:
            del self._queues[network]

    def first(self) -> Evictable | None:
        if not self._ranks:
            return None
        network = next(iter(self._ranks[-1]))
        return next(iter(self._queues[network]))


def network_of(host: str) -> str:
    """What one client has: its address, of IPv6 the 64 bits before those that it chooses itself."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((address, 64), strict=False))


def answer_of(error: ApiError) -> bytes:
    """A whole HTTP answer, the last one on its connection."""
    body = error.body()
    headers = {
        **error.headers(),
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": str(uuid4()),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {error.status} \r\n{lines}\r\n".encode() + body
