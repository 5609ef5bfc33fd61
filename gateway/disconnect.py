"""Work for a client that may go away: then the work is cancelled at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway.extensions import Departure

T = TypeVar("T")


async def until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, T], departure: Departure | None = None
) -> T:
    """The result of ``work``. Raises ``ClientDisconnect`` when the client leaves before.

    The request's body must have been read. Cancelled work has ended when this returns; work for a
    client that has left already is not begun: what it would clean up is the caller's.
    ``departure`` spares a task; without it ``receive`` is asked.
    """
    if departure is not None:
        return await _until_left(departure, work)
    departure = Departure()
    watching = asyncio.create_task(_watch(receive, departure))
    try:
        return await _until_left(departure, work)
    finally:
        # Nobody waits for it: cancelled in that wait, this would lose a result that may hold a lot.
        watching.cancel()


async def _until_left(departure: Departure, work: Coroutine[Any, Any, T]) -> T:
    # In this task, not in one of its own: whoever is cancelled then cancels the work, or has its
    # result; there is no moment in between.
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
