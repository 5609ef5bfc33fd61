"""Event loops in which tasks go on later than they could, in an order drawn by lot.

asyncio runs what is ready in the order in which it became so, and on an idle machine that order is
nearly always the same: the others come up under load, where nobody looks. Here a step of a task may
be put off for a few turns of the loop, or for some milliseconds. Nothing else changes its place:
callbacks, transports and timers keep the order they are promised, and so do the steps of one task.

asyncio's own loop does not wait for its timers here either: its time is the processor's, and moves
on when nothing else can happen. So examples take no longer than their work, and a machine that is
busy with something else changes nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import selectors
import socket
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import uvloop

MAX_TURNS = 6
MAX_WAIT_S = 0.004
OTHERS_S = 0.001
"""How long the system may take to tell of something in this very process: a socket, say."""
WAITS = 0.02
"""Of the steps that are put off, so many are for a time and not for turns."""


class _LateSteps:
    """In place of a loop's ``call_soon``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, luck: random.Random, rate: float) -> None:
        self._call_soon: Callable[..., asyncio.Handle] = loop.call_soon
        self._call_later: Callable[..., asyncio.Handle] = loop.call_later
        self._luck = luck
        self._rate = rate

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        luck = self._luck
        if not _is_step(callback) or luck.random() >= self._rate:
            return self._call_soon(callback, *args, context=context)
        run = partial(
            self._call_soon, callback, *args, context=context or contextvars.copy_context()
        )
        if luck.random() < WAITS:
            return self._call_later(luck.random() * MAX_WAIT_S, run)
        return self._put_off(luck.randint(1, MAX_TURNS), run)

    def _put_off(self, turns: int, run: Callable[[], asyncio.Handle]) -> asyncio.Handle:
        return self._call_soon(self._put_off, turns - 1, run) if turns else run()


def _is_step(callback: Callable[..., Any]) -> bool:
    """A task's first step, or its going on: there is never more than one of a task."""
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


class _Selector(selectors.DefaultSelector):
    """Waits for what others do, but not for time to pass."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0
        self.num_in_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= OTHERS_S or self.num_in_threads:
            return super().select(timeout)
        events = super().select(OTHERS_S)
        if not events:
            self.skipped_s += timeout
        return events


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's own, in a time of its own."""

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return time.process_time() + self._waits.skipped_s

    async def _accept_connection2(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        conn: socket.socket,
        extra: Any,
        sslcontext: Any = None,
        server: asyncio.Server | None = None,
        *rest: Any,
    ) -> None:
        # A server that closes before this task's first step would fail an assertion, and leave the
        # connection open for good (python/cpython#109564). uvloop has no such task.
        if server is not None and not server.is_serving():
            conn.close()
            return
        accept: Any = super()
        await accept._accept_connection2(protocol_factory, conn, extra, sslcontext, server, *rest)

    def run_in_executor(  # type: ignore[override]  # as generic as the calls here need it
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._waits.num_in_threads += 1
        future.add_done_callback(self._done_in_thread)
        return future

    def _done_in_thread(self, future: asyncio.Future[Any]) -> None:
        self._waits.num_in_threads -= 1


def late_loop(seed: int, *, rate: float, is_uvloop: bool) -> asyncio.AbstractEventLoop:
    """A new one: uvloop's, as servers have it, or ours, as tests do. ``rate``: share of the tasks'
    steps that are put off."""
    loop = uvloop.new_event_loop() if is_uvloop else OwnTimeLoop()
    late = _LateSteps(loop, random.Random(seed), rate)
    loop.call_soon = late.call_soon  # type: ignore[method-assign]
    return loop
