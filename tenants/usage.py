"""Settles the usage of requests: the only module that writes to the ledger.

    settle(event) ──► queue, at most ``max_pending`` ──► up to ``num_writers`` tasks ──► store
                        ▲                                             │
                        └────── put back, retried with backoff ◄──────┘ StoreUnavailable

A writer is a task that ends when there is nothing to write. Because it is not the caller's task, a
caller that is cancelled in ``settle`` does not interrupt the write. The store refuses a
``request_id`` that it already has, so that a retry after a lost answer writes nothing twice. With a
journal, events that wait for the store are in a file before ``settle`` returns, and ``replay``
writes those of a process that has died.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from tenants.backoff import Backoff
from tenants.errors import StoreUnavailable
from tenants.journal import Journal
from tenants.limits import Price
from tenants.outage import CALM_S, OutageLog
from tenants.progress import Running
from tenants.store import Store
from tenants.types import UsageEvent

logger = logging.getLogger(__name__)

ADOPT_S = 5.0
"""Time between two searches for files of dead processes. It is much shorter than a lease, at whose
end a less exact count would be charged."""


@dataclass(slots=True, eq=False)
class _Pending:
    event: UsageEvent
    answer: asyncio.Future[bool]
    is_journaled: bool = False
    since: float = field(default_factory=time.monotonic)
    """When it was settled, in seconds of ``time.monotonic``."""


class Ledger:
    """Settles usage exactly once per ``request_id``. One per process."""

    def __init__(
        self,
        store: Store,
        *,
        max_pending: int = 10_000,
        num_writers: int = 256,
        backoff_s: float = 0.05,
        max_backoff_s: float = 2.0,
        journal: Journal | None = None,
    ) -> None:
        """max_pending: the most events in memory, see ``has_room``. num_writers: the most writes
        under way at once, which the store sends together."""
        assert max_pending > 0
        assert num_writers > 0
        self._store = store
        self._journal = journal
        self._max_pending = max_pending
        self._num_writers = num_writers
        self._backoff = Backoff(backoff_s, max_backoff_s, has_jitter=True)
        self._pending: dict[UUID, _Pending] = {}
        self._num_journaled = 0  # pending ones in the journal; all others there are in the ledger
        self._queue: deque[_Pending] = deque()  # pending ones that no writer has taken
        self._writers: set[asyncio.Task[None]] = set()
        self._num_failures = 0  # in a row; while above 0, only one writer tries the store
        self._outage = OutageLog(logger)
        self._unjournaled = OutageLog(logger, level=logging.ERROR, calm_s=CALM_S)
        self._crowded_out: dict[UUID, UsageEvent] = {}
        """Events that wait because ``max_pending`` is reached."""
        self._hurry = asyncio.Event()
        self._progress = asyncio.Event()

    @property
    def num_pending(self) -> int:
        """Events not yet in the store."""
        return len(self._pending)

    @property
    def lag_s(self) -> float:
        """How long the oldest of these has waited for the store; 0 if there is none."""
        oldest = next(iter(self._pending.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.since

    def is_pending(self, request_id: UUID) -> bool:
        """Whether a settlement has not reached the store yet."""
        return request_id in self._pending or request_id in self._crowded_out

    @property
    def has_room(self) -> bool:
        """Whether new requests should be admitted.

        False from half of ``max_pending`` on: the other half is for the requests already running.
        """
        return 2 * len(self._pending) < self._max_pending

    async def settle(self, event: UsageEvent) -> bool:
        """Write the event once; False if its ``request_id`` was settled before.

        Returns when the store has answered. If the store does not answer, it returns True after the
        first try; the event is kept, and written later. At ``max_pending`` it waits for room. Until
        then the event is not kept here, so the caller must go on counting the request (``begin``)
        and renewing its reservation. If the store refuses the event for good, raises its error
        (``ObjectNotFound``, ``InvalidValue``) and logs the event in full, so that it can be entered
        by hand. Cancelling it does not stop the write of an event that had room.
        """
        if event.request_id in self._pending or event.request_id in self._crowded_out:
            return False
        if self._is_full:
            await self._room_for(event)
        pending = self._enqueue(event)
        if self._num_failures > 0:
            self._keep(pending)
        self._start_writers()
        # A writer does the write. Cancelling the caller ends only its waiting.
        return await pending.answer

    def begin(self, event: UsageEvent, price: Price) -> Running | None:
        """Count a request that starts now. Call ``end`` on the result once it is settled.

        event: its settlement, except for the tokens, if this process dies. None without a journal
        to count in.
        """
        return None if self._journal is None else self._journal.begin(event, price)

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= self._max_pending

    async def _room_for(self, event: UsageEvent) -> None:
        if not self._crowded_out:
            logger.warning(
                "%d settlements wait for the store already; others wait for room",
                self._max_pending,
            )
        self._crowded_out[event.request_id] = event
        try:
            while self._is_full:
                self._progress.clear()
                await self._progress.wait()
        finally:
            del self._crowded_out[event.request_id]

    def _enqueue(self, event: UsageEvent) -> _Pending:
        pending = _Pending(event, asyncio.get_running_loop().create_future())
        self._pending[event.request_id] = pending
        self._queue.append(pending)
        return pending

    def replay(self) -> int:
        """Queue the settlements that dead processes left in the journal's folder, and return their
        number.

        ``max_pending`` does not apply to them: they were within that of their process. Raises
        ``OSError``.
        """
        if self._journal is None:
            return 0
        num_events = 0
        try:
            for event in self._journal.adopt():
                num_events += 1
                if event.request_id not in self._pending:
                    pending = self._enqueue(event)
                    pending.is_journaled = True
                    pending.answer.set_result(True)
                    self._num_journaled += 1
        finally:  # After an error, only our journal has those that were adopted before it.
            self._start_writers()
        return num_events

    async def run(self) -> None:
        """Replay periodically until cancelled, because dead processes may never be restarted."""
        unread = OutageLog(logger, level=logging.ERROR)
        while True:
            await asyncio.sleep(ADOPT_S)
            try:
                if (num_events := self.replay()) > 0:
                    logger.warning("Settling %d requests of processes that died", num_events)
            except OSError as error:
                unread.failed("Settlements of dead processes stay in their files: %s", error)
            else:
                unread.succeeded("Settlements of dead processes can be read again")

    async def drain(self, deadline_s: float) -> int:
        """Wait at most ``deadline_s`` until all events are written; returns how many are left.

        Those are logged in full and stay pending. With a journal they are in its file, except for
        those that wait for room. While draining, retries follow each other quickly.
        """
        self._hurry.set()
        try:
            async with asyncio.timeout(deadline_s):
                while self._pending or self._crowded_out:
                    self._start_writers()
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            self._keep(*self._pending.values())
            left = [pending.event for pending in self._pending.values()]
            for event in (*left, *self._crowded_out.values()):
                _log_unwritten("the store did not answer until the deadline", event)
        finally:
            self._hurry.clear()
        return len(self._pending) + len(self._crowded_out)

    async def close(self) -> None:
        """Cancel the writers and wait for them. After that nothing is sent to the store or written
        to the journal. Idempotent.

        A write that was cancelled may have reached the store. Its event stays pending and in the
        journal; writing it again changes nothing.
        """
        writers = list(self._writers)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)

    def _start_writers(self) -> None:
        """Start as many writers as there is work for; only one while the store is away."""
        num_wanted = min(self._num_writers, len(self._queue)) if self._num_failures == 0 else 1
        while len(self._writers) < num_wanted:
            task = asyncio.create_task(self._run_writer(), name="ledger writer")
            self._writers.add(task)
            task.add_done_callback(self._writers.discard)

    async def _run_writer(self) -> None:
        try:
            await self._write_queue()
        finally:
            # Here, and not only in the callback: nothing may run between finding the queue empty
            # and leaving the set, or no writer would take an event that another one puts back.
            self._writers.discard(_current_task())

    async def _write_queue(self) -> None:
        while self._queue:
            pending = self._queue.popleft()
            try:
                written = await self._store.record_usage(pending.event)
            except StoreUnavailable as error:
                self._put_back(pending)
                if not await self._back_off(error):
                    return
            except asyncio.CancelledError:
                self._put_back(pending)
                raise
            except Exception as error:  # The store refuses this event only.
                self._finish(pending, error)
            else:
                self._recover()
                self._finish(pending, written)

    def _put_back(self, pending: _Pending) -> None:
        self._queue.appendleft(pending)
        self._keep(pending)

    def _keep(self, *kept: _Pending) -> None:
        """Write events to the journal, if they are not there yet, and answer their callers: they
        will be written to the store later."""
        new = [pending for pending in kept if not pending.is_journaled]
        if self._journal is not None and new:
            try:
                self._journal.append([pending.event for pending in new])
            except OSError as error:
                self._unjournaled.failed(
                    "The journal fails, %d settlements only in memory: %s", len(new), error
                )
            else:
                self._unjournaled.succeeded("The journal takes settlements again")
                self._num_journaled += len(new)
                for pending in new:
                    pending.is_journaled = True
        for pending in kept:
            if not pending.answer.done():
                pending.answer.set_result(True)

    async def _back_off(self, error: StoreUnavailable) -> bool:
        """Wait before the next try; False if another writer does."""
        self._num_failures += 1
        if self._num_failures == 1:
            self._keep(*self._queue)
        self._outage.failed("The ledger keeps usage until the store is back: %s", error)
        if len(self._writers) > 1:
            return False
        delay_s = self._backoff.next_s()
        if self._hurry.is_set():
            await asyncio.sleep(min(delay_s, self._backoff.first_s))
            return True
        try:
            async with asyncio.timeout(delay_s):
                await self._hurry.wait()
        except TimeoutError:
            pass
        return True

    def _recover(self) -> None:
        if self._num_failures > 0:
            self._num_failures = 0
            self._backoff.reset()
            self._outage.succeeded(
                "The store takes usage again (%d events wait)", len(self._pending)
            )
            self._start_writers()

    def _finish(self, pending: _Pending, answer: bool | Exception) -> None:
        del self._pending[pending.event.request_id]
        if pending.is_journaled:
            self._num_journaled -= 1
            if self._journal is not None and self._num_journaled == 0:
                self._journal.clear()
        self._progress.set()
        if isinstance(answer, Exception):
            _log_unwritten(f"the store refused it: {answer}", pending.event)
        if pending.answer.done():
            return
        if isinstance(answer, Exception):
            pending.answer.set_exception(answer)
        else:
            pending.answer.set_result(answer)


def _current_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _log_unwritten(reason: str, event: UsageEvent) -> None:
    logger.error("Usage not in the ledger, %s: %s", reason, msgspec.json.encode(event).decode())
