"""Deletes what the store keeps for a limited time, once that is over."""

from __future__ import annotations

import asyncio
import logging
import random

from tenants.errors import StoreUnavailable
from tenants.outage import OutageLog
from tenants.shared import SharedState

logger = logging.getLogger(__name__)


class Retention:
    """Every gateway worker runs one; they skip each other's rows."""

    def __init__(self, shared: SharedState, *, interval_s: float = 60.0) -> None:
        self._shared = shared
        self._interval_s = interval_s
        self._outage = OutageLog(logger)

    async def run(self) -> None:
        """Delete expired rows periodically, until cancelled."""
        while True:
            # Random, so that workers that start together do not act together.
            await asyncio.sleep(self._interval_s * random.uniform(0.5, 1.0))
            try:
                while await self._shared.delete_expired():
                    pass
            except StoreUnavailable as error:
                self._outage.failed("What has expired stays for now: %s", error)
            else:
                self._outage.succeeded("What has expired is deleted again")
