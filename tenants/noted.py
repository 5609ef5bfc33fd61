"""What is noted of requests in memory, and written with one statement per interval."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from tenants.errors import TenantsError
from tenants.outage import OutageLog

K = TypeVar("K")
V = TypeVar("V")


class Noted(ABC, Generic[K, V]):
    """Collects entries; ``run`` writes them. One per process."""

    failure: ClassVar[str]
    """What the log says of an outage of the store, with the number of entries and the error,"""
    recovery: ClassVar[str]
    """and of its end."""

    def __init__(self, interval_s: float, max_entries: int) -> None:
        """``max_entries``: the most in memory while the store is away; others are dropped."""
        self._interval_s = interval_s
        self._max_entries = max_entries
        self._noted: dict[K, V] = {}
        self._outage = OutageLog(logging.getLogger(type(self).__module__))

    @abstractmethod
    async def _write(self, noted: dict[K, V]) -> None:
        """Raises ``TenantsError`` if the store fails."""

    @abstractmethod
    def _joined(self, earlier: V, later: V) -> V:
        """The value of an entry that was noted before and after an attempt that failed."""

    def _has_room(self, key: K) -> bool:
        return key in self._noted or len(self._noted) < self._max_entries

    async def run(self) -> None:
        """Write every ``interval_s`` until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Write what was noted, or keep it for the next time if the store fails."""
        noted, self._noted = self._noted, {}
        if not noted:
            return
        try:
            await self._write(noted)
        except TenantsError as error:
            for key, later in self._noted.items():
                noted[key] = self._joined(noted[key], later) if key in noted else later
            self._noted = noted
            self._outage.failed(self.failure, len(noted), error)
        else:
            self._outage.succeeded(self.recovery)
