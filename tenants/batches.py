"""Concurrent calls of one kind, sent together: one transaction for as many as wait.

    submit ──► waiting ──► at most ``max_running`` batches under way ──► each caller its own answer

Nobody waits for a batch to fill: what was called for in one turn of the event loop goes out with
it while fewer batches are under way, and what comes meanwhile makes up the next one. So a quiet
server adds no delay, and a busy one sends larger batches the busier it is. Who has time says so,
and is sent with others, or when that time is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T, R]):
    item: T
    answer: asyncio.Future[R]
    is_sent: bool = field(default=False)


class Batcher(Generic[T, R]):
    """Sends items of concurrent callers in batches. Safe for concurrent tasks of one loop."""

    def __init__(
        self,
        send: Callable[[Sequence[T]], Awaitable[Sequence[R | Exception]]],
        *,
        identity: Callable[[T], Hashable],
        max_items: int = 64,
        max_running: int = 2,
    ) -> None:
        """send: answers each item, in order; an exception that it raises answers them all. Items
        with the same ``identity`` never share a batch."""
        self._send = send
        self._identity = identity
        self._max_items = max_items
        self._max_running = max_running
        self._waiting: deque[_Waiting[T, R]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._is_starting = False
        self._is_pressing = False
        """Something waits that has no time, or none any more."""
        self._timer: asyncio.TimerHandle | None = None
        """When what has time has none any more."""

    async def submit(self, item: T, *, patience_s: float = 0.0) -> R:
        """The answer to this item; raises the exception that ``send`` returned for it.

        ``patience_s``: how long it may wait for others to be sent with.
        An item cancelled before it is sent is never sent. If cancelled later, its batch is waited
        for, so that the caller can undo it: nothing happens on its behalf after ``submit`` has
        ended.
        """
        waiting: _Waiting[T, R] = _Waiting(item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if patience_s > 0:
            self._press_within(patience_s)
        else:
            self._press()
        try:
            return await asyncio.shield(waiting.answer)
        except asyncio.CancelledError:
            if waiting.is_sent:
                await asyncio.wait((waiting.answer,))
                waiting.answer.exception()  # nobody else will look
            else:
                waiting.answer.cancel()
            raise

    def _press_within(self, patience_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + patience_s
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due_s, self._press)

    def _press(self) -> None:
        self._is_pressing = True
        if not self._is_starting:
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._is_starting = False
        while self._waiting and len(self._running) < self._max_running:
            batch = self._take()
            if batch:
                task = asyncio.create_task(self._run(batch), name=f"batch of {len(batch)}")
                self._running.add(task)
                task.add_done_callback(self._end)
        if not self._waiting:
            self._is_pressing = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _take(self) -> list[_Waiting[T, R]]:
        batch: dict[Hashable, _Waiting[T, R]] = {}
        later: list[_Waiting[T, R]] = []
        while self._waiting and len(batch) < self._max_items:
            waiting = self._waiting.popleft()
            if waiting.answer.cancelled():
                continue
            identity = self._identity(waiting.item)
            if identity in batch:
                later.append(waiting)
            else:
                waiting.is_sent = True
                batch[identity] = waiting
        self._waiting.extendleft(reversed(later))
        return list(batch.values())

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._is_pressing:
            self._start()

    async def _run(self, batch: list[_Waiting[T, R]]) -> None:
        answers: Sequence[R | Exception]
        try:
            answers = await self._send([waiting.item for waiting in batch])
            assert len(answers) == len(batch)
        except Exception as error:  # each caller decides what it means
            answers = [error] * len(batch)
        except BaseException:
            for waiting in batch:
                waiting.answer.cancel()
            raise
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)
