"""A cache of compiled grammars, bounded in bytes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Entry(NamedTuple, Generic[Value]):
    value: Value
    num_bytes: int
    expires_at: float


class ByteLRU(Generic[Key, Value]):
    """Evicts the least recently used values once the sum of sizes exceeds ``max_bytes``.
    Thread-safe.

    A value larger than ``max_bytes`` is not kept at all.
    """

    def __init__(self, max_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._clock = clock
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry.expires_at <= self._clock():
                self._remove(key)
                return None
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: Key, value: Value, num_bytes: int, *, ttl_s: float = float("inf")) -> None:
        with self._lock:
            self._remove(key)
            if num_bytes > self.max_bytes:
                return
            self._entries[key] = _Entry(value, num_bytes, self._clock() + ttl_s)
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes:
                self._remove(next(iter(self._entries)))

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes
