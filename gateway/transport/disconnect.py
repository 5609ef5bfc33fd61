"""Cancels the work for a client as soon as the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway.transport.extensions import Departure

T = TypeVar("T")


async def until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, T], departure: Departure | None = None
) -> T:
    """The result of ``work``. Raises ``ClientDisconnect`` if the client leaves before.

    The request's body must have been read. Cancelled work has ended when this raises. Work for a
    client that has already left is not started, so the caller must clean up what it would have.
    ``departure`` needs no task to see that the client has left; if it is None, a task asks
    ``receive``.
    """
    if departure is not None:
        return await _until_left(departure, work)
    departure = Departure()
    watching = asyncio.create_task(_watch(receive, departure))
    try:
        return await _until_left(departure, work)
    finally:
        # It is not awaited: a cancellation that came while waiting would lose the result, with the
        # resources that it may hold.
        watching.cancel()


async def _until_left(departure: Departure, work: Coroutine[Any, Any, T]) -> T:
    # The work runs in this task, not in one of its own: so a caller that is cancelled either
    # cancels the work or has its result, with no moment in between.
    if departure.has_left:
        work.close()
        raise ClientDisconnect
    try:
        async with asyncio.timeout(None) as cut:  # runs out when the client leaves
            departure.on_leave = partial(cut.reschedule, 0.0)
            try:
                return await work
            finally:
                departure.on_leave = None
    except TimeoutError:
        if cut.expired():
            raise ClientDisconnect from None
        raise


async def _watch(receive: Receive, departure: Departure) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        departure.leave()
