"""What the store keeps for a time only goes when its time is over."""

from __future__ import annotations

import asyncio
import logging
import random

from tenants.errors import StoreUnavailable
from tenants.shared import SharedState

logger = logging.getLogger(__name__)


class Retention:
    """Every gateway worker has one: they pass over each other's rows."""

    def __init__(self, shared: SharedState, *, interval_s: float = 60.0) -> None:
        self._shared = shared
        self._interval_s = interval_s

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            # Workers that start together do not look together.
            await asyncio.sleep(self._interval_s * random.uniform(0.5, 1.0))
            try:
                while await self._shared.delete_expired():
                    pass
            except StoreUnavailable as error:
                logger.warning("What has expired stays for now: %s", error)
