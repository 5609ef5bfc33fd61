"""Sends concurrent calls of one kind to the database together, in one transaction.

    submit ──► waiting ──► at most ``max_running`` batches under way ──► each caller its own answer

No call waits for a batch to fill. While fewer than ``max_running`` batches are under way, all calls
of one turn of the event loop are sent together; otherwise those that come meanwhile make up the
next batch. So an idle server adds no delay, and batches grow with the load. A call with
``patience_s`` is sent with others, or when that time is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
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
        """send: returns an answer for each item, in order; an exception that it raises is the
        answer for all. Items with the same ``identity`` are never in the same batch."""
        self._send = send
        self._identity = identity
        self._max_items = max_items
        self._max_running = max_running
        self._waiting: deque[_Waiting[T, R]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._is_starting = False
        self._is_pressing = False
        """Whether a call waits whose patience is over."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs when the least patience of the waiting calls is over."""

    async def submit(self, item: T, *, patience_s: float = 0.0) -> R:
        """The answer to this item; raises the exception that ``send`` returned for it.

        ``patience_s``: how long it may wait for others, to be sent with them. If cancelled before
        the item is sent, it is never sent. If cancelled later, this waits for the batch, so that
        nothing happens on the caller's behalf after ``submit`` has ended and the caller can undo
        it.
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
                waiting.answer.exception()  # Otherwise asyncio would log it.
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
        except Exception as error:  # It is for the callers to handle.
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


async def send_each(
    send_one: Callable[[T], Awaitable[R]], items: Iterable[T]
) -> Sequence[R | Exception]:
    """Send items concurrently, each in a transaction of its own; returns their answers in order.

    For a ``send`` whose batch was refused because of one item.
    """
    answers = await asyncio.gather(*map(send_one, items), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            raise answer
    return answers  # type: ignore[return-value]
