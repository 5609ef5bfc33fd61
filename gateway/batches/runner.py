"""Runs lines of batches beside the requests of clients, in this worker.

    claim ──► LineRun ──► finish: the result and the ledger's row, in one transaction
      ▲          │
      └──────────┴ given back: refused by a rate, or the server shuts down

A line is leased while it runs. If this worker dies, another one runs it again; if it stands still
for longer than its lease, what it writes then is not heard (``tenants.batch_queue``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from starlette.types import ASGIApp

from gateway.admission.admission import Admission
from gateway.batches.files import new_file_id
from gateway.batches.lines import (
    ENDPOINTS,
    STOPPED,
    Answer,
    LineRun,
    error_result,
    result_of,
)
from gateway.batches.validation import Validation
from gateway.config import Config
from gateway.metrics.metrics import Metrics
from gateway.schemas.operation import Operation
from tenants.authenticator import Authenticator
from tenants.backoff import Backoff
from tenants.batch_queue import Batch, BatchStatus, Line, LineKey, Result
from tenants.errors import StoreUnavailable, TenantsError
from tenants.outage import OutageLog
from tenants.request_ids import new_request_id
from tenants.store import Store

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=30)
POLL_S = 1.0
"""Between two looks for work that another worker's client has brought; up to ten times as long
while there is none, since each look of each worker is a transaction."""
MAX_LOST = 5
"""A line whose workers have died so often fails, and a batch that they validated: it may be what
kills them."""
_MAX_RESULTS = 64
_STOP_S = 2.0
_ANY = 2**31 - 1
_OVER: Mapping[BatchStatus, tuple[str, str]] = {
    "cancelling": ("batch_cancelled", "The batch was cancelled before this line was done."),
    "finalizing": ("batch_expired", "The batch expired before this line was done."),
}


class _Polling:
    """When to look for work again: soon after some was found or ``wake``, else ever later."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        # Random, so that workers that start together do not look together.
        self._backoff = Backoff(POLL_S, 10 * POLL_S, has_jitter=True)

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, *, has_found: bool) -> None:
        if has_found:
            self._backoff.reset()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.next_s()):
                await self._woken.wait()
            self._backoff.reset()
        self._woken.clear()


class BatchRunner:
    """The lines that this worker runs, and the batches that it validates and ends."""

    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        authenticator: Authenticator,
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        self._max_lines = config.server.max_batch_lines
        self._store = store
        self._queue = store.batch_queue
        self._authenticator = authenticator
        self._admission = admission
        self._metrics = metrics
        self._lease = LEASE
        self._owner = uuid4()
        self._validation = Validation(store.batch_queue, store.files, config.server.max_body_bytes)
        self.num_waiting = 0
        """Lines of all tenants that have no result yet, as of a moment ago."""
        self._app: ASGIApp | None = None
        self._operations: dict[str, Operation] = {}
        self._running: dict[LineKey, tuple[Line, LineRun]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._results: asyncio.Queue[tuple[Result, asyncio.Future[bool]]] = asyncio.Queue()
        self._for_lines, self._for_batches = _Polling(), _Polling()
        self._paused_until: dict[UUID | None, float] = {}
        """Until when no line of a tenant is tried, or of nobody under None."""
        self._outage = OutageLog(logger)

    def serve(self, app: ASGIApp, operations: Sequence[Operation]) -> None:
        """Run lines by this app, behind all middleware, at these operations."""
        self._app = app
        self._operations = {
            one.path: one
            for one in operations
            if one.method == "POST" and one.path in ENDPOINTS and one.body is not None
        }

    @property
    def operations(self) -> Mapping[str, Operation]:
        """What lines may ask for, by path."""
        return self._operations

    @property
    def num_running(self) -> int:
        return len(self._running)

    def wake(self) -> None:
        """There may be work."""
        self._for_lines.wake()
        self._for_batches.wake()

    async def run(self) -> None:
        """Run lines until cancelled; then those that run are given back."""
        if not self._max_lines:
            await asyncio.Event().wait()
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self._claim, self._renew, self._step, self._write):
                    group.create_task(self._repeat(work), name=f"batches {work.__name__}")
        finally:
            await self._stop()

    async def _stop(self) -> None:
        """Give back what runs, and keep what is done."""
        for _, run in self._running.values():
            run.stop()
        writing = asyncio.create_task(self._repeat(self._write), name="last results of batches")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        left = [writing, *self._tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(0.2, 5.0, has_jitter=True)
        while True:
            try:
                await work()
            except StoreUnavailable as error:
                self._outage.failed("Batches wait for the store: %s", error)
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()
                self._outage.succeeded("Batches go on again")

    # -- lines

    async def _claim(self) -> None:
        """Take as many lines as there is room for, then wait for room or work."""
        found: Sequence[Line] = ()
        if self._admission.draining:
            for _, run in [*self._running.values()]:
                run.stop()
        elif (room := self._max_lines - len(self._running)) > 0:
            now = time.monotonic()
            self._paused_until = {who: at for who, at in self._paused_until.items() if at > now}
            if None not in self._paused_until:
                ids = [new_request_id() for _ in range(room)]
                tenants = [who for who in self._paused_until if who is not None]
                found = await self._queue.claim(self._owner, ids, self._lease, but_of=tenants)
                for line in found:
                    self._start(line)
        await self._for_lines.wait(has_found=bool(found))

    def _start(self, line: Line) -> None:
        assert self._app is not None, "serve comes before run"
        operation = self._operations.get(line.endpoint)
        run = None if operation is None else LineRun(self._app, operation, line)
        task = asyncio.create_task(self._run_line(line, run), name=f"batch line {line.request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_line(self, line: Line, run: LineRun | None) -> None:
        if run is None or line.num_lost >= MAX_LOST:
            why = ("endpoint_gone", "This server does not have the endpoint any more.")
            if run is not None:
                why = ("server_error", f"Its servers ended {line.num_lost} times while it ran.")
            await self._finish_failed(line, why)
            return
        self._running[line.key] = (line, run)
        try:
            text = await self._queue.read(line)
            answer = await run.answer(text, self._authenticator)
            if run.why is not None:
                await self._finish_failed(line, run.why, answer)
            elif answer.retry_after_s is not None or answer.status == STOPPED:
                await self._give_back(line, answer)
            else:
                await self._finish(line, answer)
        except TenantsError as error:
            # Its lease ends by itself, and it runs again: nothing of it was billed.
            logger.warning("%s, line %d runs again: %s", line.batch_id, line.number, error)
        finally:
            del self._running[line.key]
            self._for_lines.wake()
            if not self._running:  # It may have been the last one of a batch.
                self._for_batches.wake()

    async def _finish(self, line: Line, answer: Answer) -> None:
        is_failed = answer.status != 200
        kept = await self._keep(_result(line, result_of(line, answer), is_failed, answer))
        self._metrics.count_batch_line("failed" if is_failed else "completed" if kept else "lost")
        if not kept:
            logger.warning("%s, line %d was taken by another worker", line.batch_id, line.number)

    async def _finish_failed(
        self, line: Line, why: tuple[str, str], answer: Answer | None = None
    ) -> None:
        """It gets no answer. What it used until then is billed."""
        said = {"code": why[0], "message": why[1], "line": line.number}
        data = error_result(line.request_id.hex, line.custom_id, said)
        await self._keep(_result(line, data, True, answer))
        self._metrics.count_batch_line("failed")

    async def _give_back(self, line: Line, answer: Answer) -> None:
        """Try it again later, in this worker or another; or not at all, if its batch is over."""
        await self._store.release(line.tenant_id, line.request_id)
        wait_s = answer.retry_after_s or 0.0
        if answer.status == 429:
            self._pause(line.tenant_id, wait_s)
        elif answer.status == 503:
            self._pause(None, wait_s)
        await self._queue.give_back(line, timedelta(seconds=wait_s))
        asyncio.get_running_loop().call_later(wait_s, self._for_lines.wake)

    def _pause(self, who: UUID | None, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        self._paused_until[who] = max(self._paused_until.get(who, 0.0), until)

    # -- results, together

    async def _keep(self, result: Result) -> bool:
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._results.put_nowait((result, answered))  # No more than there are lines.
        return await answered

    async def _write(self) -> None:
        taken = [await self._results.get()]
        while len(taken) < _MAX_RESULTS and not self._results.empty():
            taken.append(self._results.get_nowait())
        try:
            kept = await self._finish_all([result for result, _ in taken])
        except BaseException:
            for one in taken:
                self._results.put_nowait(one)
            raise
        for (_, answered), is_kept in zip(taken, kept, strict=True):
            if not answered.done():
                answered.set_result(is_kept)

    async def _finish_all(self, results: Sequence[Result]) -> Sequence[bool]:
        """Keep all of them; if the store refuses one, each is sent alone, to find out which."""
        try:
            return await self._queue.finish(results)
        except StoreUnavailable:
            raise
        except TenantsError as error:
            if len(results) > 1:
                return [kept for one in results for kept in await self._finish_all([one])]
            logger.error("%s, line %d: %s", results[0].batch_id, results[0].number, error)
            return [False]

    # -- leases

    async def _renew(self) -> None:
        self.num_waiting = await self._queue.num_waiting()
        await asyncio.sleep(self._lease.total_seconds() / 3)
        held = [line for line, _ in self._running.values()]
        if not held:
            return
        found = await self._queue.renew(self._owner, held, self._lease)
        for line in held:
            status = found.get(line.key)
            # Another worker has it, or its batch is over.
            if status != "in_progress" and line.key in self._running:
                self._running[line.key][1].stop(None if status is None else _OVER.get(status))

    # -- batches

    async def _step(self) -> None:
        batch = None if self._admission.draining else await self._queue.step(self._lease)
        if batch is None:
            await self._for_batches.wait(has_found=bool(self._running))
            return
        keeping = asyncio.create_task(self._keep_leased(batch), name=f"lease of {batch.id}")
        try:
            if batch.status == "validating" and batch.attempts > MAX_LOST:
                await self._validation.give_up(batch)
            elif batch.status == "validating":
                await self._validation.run(batch)
                self._for_lines.wake()
            else:
                await self._end(batch)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep_leased(self, batch: Batch) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            if not await self._queue.keep(batch, self._lease):
                return  # What is written for it is not heard any more.

    async def _end(self, batch: Batch) -> None:
        """Give the lines that will not run a result, and write the files."""
        code, message = _OVER[batch.status]
        while rest := await self._queue.open_lines(batch, 500):
            results = [
                Result(
                    tenant_id=batch.tenant_id,
                    batch_id=batch.id,
                    number=line.number,
                    attempts=line.attempts,
                    data=error_result(
                        f"{batch.id}_{line.number}",
                        line.custom_id,
                        {"code": code, "message": message, "line": line.number},
                    ),
                    is_failed=True,
                    event=None,
                )
                for line in rest
            ]
            if not any(await self._queue.finish(results)):
                return  # Another worker ends it.
        files = self._store.files
        names = {is_failed: new_file_id() for is_failed in (False, True)}
        try:
            for is_failed, file_id in names.items():
                if not await files.begin(batch.tenant_id, file_id, max_files=_ANY):
                    return
                after: int | None = 0
                while after is not None:
                    after = await self._queue.pack(batch, file_id, is_failed=is_failed, after=after)
            await self._queue.end(batch, names[False], names[True])
        finally:
            for file_id in names.values():
                await files.abandon(batch.tenant_id, file_id)


def _result(line: Line, data: bytes, is_failed: bool, answer: Answer | None) -> Result:
    return Result(
        tenant_id=line.tenant_id,
        batch_id=line.batch_id,
        number=line.number,
        attempts=line.attempts,
        data=data,
        is_failed=is_failed,
        event=None if answer is None else answer.event,
    )
