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
    ``departure`` spares two tasks; without it ``receive`` is asked.
    """
    if departure is None:
        return await _race(receive, work)
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


async def _race(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
