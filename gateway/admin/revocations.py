"""Ends what runs under a key that is revoked or expires: its requests, WebSockets and stream
readers.

    ChangeListener ──► on_change ──► suspects ──► run: asks the authenticator ──► fail, close

                                    ▲
              time, for keys that expire ┘

A notification only tells which keys to check. The authenticator decides whether a key is valid, so
that lost and repeated notifications do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import chain
from uuid import UUID

from gateway.errors import ApiError, PermissionDenied, to_api_error
from gateway.generation.generation import Generations
from gateway.lifecycle import Session
from gateway.streams.keyed_reader import KeyedReader
from tenants.authenticator import Authenticator
from tenants.changes import Change
from tenants.errors import AuthenticationFailed, StoreUnavailable
from tenants.outage import OutageLog
from tenants.types import Principal

logger = logging.getLogger(__name__)

RETRY_S = 0.2
SWEEP_S = 0.25


class Revocations:
    """Checks keys in use again whenever something about them has changed."""

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        generations: Generations,
        sessions: Set[Session],
        readers: Set[KeyedReader] = frozenset(),
        num_checks: int = 8,
        on_adapter_deleted: Callable[[UUID], None] | None = None,
    ) -> None:
        """num_checks: how many keys may be looked up at once when all may have changed."""
        self._authenticator = authenticator
        self._generations = generations
        self._sessions = sessions
        self._readers = readers
        self._num_checks = num_checks
        self._on_adapter_deleted = on_adapter_deleted
        self._suspects: dict[str, None] = {}  # in the order of their changes
        self._wake = asyncio.Event()
        self._outage = OutageLog(logger)

    def on_change(self, change: Change) -> None:
        """The callback for a ``ChangeListener``. Does not block."""
        if change.engine_id is not None:
            return
        if change.request_id is not None:
            self._generations.fail_request(change.request_id, killed())
            return
        if change.adapter_id is not None:
            if self._on_adapter_deleted is not None:
                self._on_adapter_deleted(change.adapter_id)
            return
        self._authenticator.apply(change)
        for principal in self._in_use():
            if _concerns(change, principal):
                self._suspects[principal.key.public_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Check suspects as they come, and look for keys that have expired, until cancelled."""
        while True:
            if not self._suspects:
                await self._wait()
                self._sweep()
            batch = list(self._suspects)[: self._num_checks]
            try:
                async with asyncio.TaskGroup() as group:
                    for public_id in batch:
                        group.create_task(self._check(public_id), name=f"check {public_id}")
            except* StoreUnavailable as errors:
                self._outage.failed("Keys in use are not checked: %s", errors.exceptions[0])
                await asyncio.sleep(RETRY_S)
            else:
                if batch:
                    self._outage.succeeded("Keys in use are checked again")

    async def _wait(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(SWEEP_S):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _sweep(self) -> None:
        for principal in self._in_use():
            if self._authenticator.has_ended(principal):
                self._suspects[principal.key.public_id] = None

    async def _check(self, public_id: str) -> None:
        try:
            self._suspects.pop(public_id, None)
            await self._authenticator.check(public_id)
        except AuthenticationFailed as exc:
            logger.info("%s What runs under it ends.", exc)
            self._end(public_id, to_api_error(exc))
        except BaseException:
            self._suspects[public_id] = None
            raise

    def _end(self, public_id: str, error: ApiError) -> None:
        self._generations.fail_key(public_id, error)
        everything: list[Session | KeyedReader] = [*self._sessions, *self._readers]
        for opened in everything:
            if opened.principal is not None and opened.principal.key.public_id == public_id:
                opened.refuse(error)

    def _in_use(self) -> Iterator[Principal]:
        opened: Iterable[Principal | None] = (session.principal for session in self._sessions)
        return chain(
            self._generations.principals(),
            (principal for principal in opened if principal is not None),
            (reader.principal for reader in self._readers),
        )


def killed() -> PermissionDenied:
    """The error for the client of a request that an administrator ended."""
    return PermissionDenied("An administrator ended this request.", code="ended_by_administrator")


def _concerns(change: Change, principal: Principal) -> bool:
    if change.public_id is not None:
        return principal.key.public_id == change.public_id
    return change.tenant_id in (None, principal.tenant.id)
