"""The ledger's front: the one place where the usage of a request is settled.

    settle(event) ──► queue, at most ``max_pending`` ──► up to ``num_writers`` tasks ──► store
                        ▲                                             │
                        └────── put back, retried with backoff ◄──────┘ StoreUnavailable

A writer lives while there is something to write. Writing is its task, not the caller's: cancelling
``settle`` at any point leaves the write under way. The store refuses a ``request_id`` it has, so
trying again after an answer that was lost writes nothing twice. With a journal, what is kept while
the store is away is on the disk before ``settle`` returns, and ``replay`` writes what a process
that died had kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tenants.errors import StoreUnavailable
from tenants.journal import Journal
from tenants.limits import Price
from tenants.outage import CALM_S, OutageLog
from tenants.progress import Running
from tenants.store import Store
from tenants.types import UsageEvent

logger = logging.getLogger(__name__)

ADOPT_S = 5.0
"""Well within a lease, after which a less exact count is charged."""


@dataclass(slots=True, eq=False)
class _Pending:
    event: UsageEvent
    answer: asyncio.Future[bool]
    is_journaled: bool = False


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
        """max_pending: bounds memory (see ``has_room``). num_writers: writes under way at once; the
        store sends those together."""
        assert max_pending > 0
        assert num_writers > 0
        self._store = store
        self._journal = journal
        self._max_pending = max_pending
        self._num_writers = num_writers
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._pending: dict[UUID, _Pending] = {}
        self._num_journaled = 0  # of the pending; the rest of the file is in the ledger
        self._queue: deque[_Pending] = deque()  # pending, and in no writer's hands
        self._writers: set[asyncio.Task[None]] = set()
        self._num_failures = 0  # in a row; while > 0 the store is away and one writer probes it
        self._outage = OutageLog(logger)
        self._unjournaled = OutageLog(logger, level=logging.ERROR, calm_s=CALM_S)
        self._crowded_out: dict[UUID, UsageEvent] = {}
        """Events that wait for room among the pending."""
        self._hurry = asyncio.Event()
        self._progress = asyncio.Event()

    @property
    def num_pending(self) -> int:
        """Events not yet in the store."""
        return len(self._pending)

    @property
    def has_room(self) -> bool:
        """Whether new requests should be admitted.

        False from half of ``max_pending`` on: the other half is for the requests already running.
        """
        return 2 * len(self._pending) < self._max_pending

    async def settle(self, event: UsageEvent) -> bool:
        """Write the event once; False when its ``request_id`` was settled before.

        Returns when the store has answered, or True at its first failure to answer: from there on
        the event is kept and written later. At the bound it waits for room; until there is some,
        the event is its caller's, who keeps the request counted (``begin``) and its reservation
        held. Raises what the store raises for an event it will never take (``KeyNotFound``,
        ``InvalidValue``), which is logged in full, so that it can be entered by hand. Cancelling it
        changes nothing for an event that had room.
        """
        if event.request_id in self._pending or event.request_id in self._crowded_out:
            return False
        if self._is_full:
            await self._room_for(event)
        pending = self._enqueue(event)
        if self._num_failures > 0:
            self._keep(pending)
        self._start_writers()
        # The caller owns the future, a writer the write: cancelling ends only the waiting.
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
        """Queue what dead processes left in the journal's folder; returns the number of
        settlements.

        They are exempt from the bound: they were within one already. Raises ``OSError``.
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
        finally:  # the journal has those before an error, and nobody else has
            self._start_writers()
        return num_events

    async def run(self) -> None:
        """Adopt what dead processes have left, until cancelled: they may never be restarted."""
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
        """Wait until all is written, ``deadline_s`` at most; return how many events are left.

        What is left is logged in full, stays pending and, with a journal, is on the disk, but for
        what still waits for room. Retries hurry while draining.
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
        """Cancel the writers and wait for them. After that nothing is sent to the store, and the
        journal is not touched. Idempotent.

        A write that was cancelled may have reached the store. Its event stays pending and in the
        journal; to write it again changes nothing.
        """
        writers = list(self._writers)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)

    def _start_writers(self) -> None:
        """As many as there is work for; one while the store is away."""
        num_wanted = min(self._num_writers, len(self._queue)) if self._num_failures == 0 else 1
        while len(self._writers) < num_wanted:
            task = asyncio.create_task(self._run_writer(), name="ledger writer")
            self._writers.add(task)
            task.add_done_callback(self._writers.discard)

    async def _run_writer(self) -> None:
        try:
            await self._write_queue()
        finally:
            # Here and not only in a callback: between the last look at the queue and leaving the
            # set nothing may run, or an event put back by another writer would find nobody.
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
            except Exception as error:  # the event is refused, the ledger goes on
                self._finish(pending, error)
            else:
                self._recover()
                self._finish(pending, written)

    def _put_back(self, pending: _Pending) -> None:
        self._queue.appendleft(pending)
        self._keep(pending)

    def _keep(self, *kept: _Pending) -> None:
        """Answer these as kept, to be written later; journal those that are not yet on disk."""
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
        """Wait before the next attempt; False when another writer does the waiting."""
        self._num_failures += 1
        if self._num_failures == 1:
            self._keep(*self._queue)
        self._outage.failed("The ledger keeps usage until the store is back: %s", error)
        if len(self._writers) > 1:
            return False
        delay_s = min(self._max_backoff_s, self._backoff_s * 2.0 ** min(self._num_failures - 1, 30))
        delay_s *= random.uniform(0.5, 1.0)  # replicas must not come back in step
        if self._hurry.is_set():
            await asyncio.sleep(min(delay_s, self._backoff_s))
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
