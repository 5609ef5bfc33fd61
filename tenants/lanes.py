"""Lets each tenant use a slow and scarce resource for only so much at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

T = TypeVar("T")


class Turn:
    """A place in a tenant's lane, until ``leave``."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        """Idempotent."""
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()


class Lanes:
    """One lane for each tenant: however much work a tenant has, it delays another tenant's by as
    many pieces of work as its lane is wide."""

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self._locks: dict[UUID, asyncio.Semaphore] = {}
        self._num_users: dict[UUID, int] = {}

    def __len__(self) -> int:
        """The number of tenants that have a turn or wait for one."""
        return len(self._locks)

    def num_users(self, tenant: UUID) -> int:
        """Turns that a tenant has or waits for."""
        return self._num_users.get(tenant, 0)

    async def turn(self, tenant: UUID) -> Turn:
        """Wait until there is room in the tenant's lane, first come, first served, and take it."""
        await self._enter(tenant)
        return Turn(lambda: self._leave(tenant))

    async def run(
        self,
        tenant: UUID,
        start: Callable[[], concurrent.futures.Future[T] | asyncio.Future[T]],
    ) -> T:
        """Wait for a ``turn``. Then ``start`` the work, and return or raise what it does.

        The turn lasts until the work is done, even if the caller is cancelled: otherwise a tenant
        could have much work under way by cancelling each piece. A caller that is cancelled before
        its turn starts nothing.
        """
        await self._enter(tenant)
        try:
            work = asyncio.wrap_future(start())
        except BaseException:
            self._leave(tenant)
            raise
        work.add_done_callback(_heard)
        work.add_done_callback(lambda _: self._leave(tenant))
        await asyncio.wait([work])  # unlike the work itself, which must not be cancelled with us
        try:
            return work.result()
        finally:
            del work  # Its exception refers to this frame: no cycle is left to the collector.

    async def _enter(self, tenant: UUID) -> None:
        lock = self._locks.get(tenant)
        if lock is None:
            lock = self._locks[tenant] = asyncio.Semaphore(self._width)
        self._num_users[tenant] = self._num_users.get(tenant, 0) + 1
        try:
            await lock.acquire()
        except BaseException:
            self._forget(tenant)
            raise

    def _leave(self, tenant: UUID) -> None:
        self._locks[tenant].release()
        self._forget(tenant)

    def _forget(self, tenant: UUID) -> None:
        self._num_users[tenant] -= 1
        if not self._num_users[tenant]:
            del self._locks[tenant], self._num_users[tenant]


def _heard(work: asyncio.Future[T]) -> None:
    """Mark the exception as retrieved: asyncio need not log it if the caller was cancelled."""
    if not work.cancelled():
        work.exception()
