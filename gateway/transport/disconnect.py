"""Cancels the work for a client as soon as the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway.transport.extensions import Disconnect

T = TypeVar("T")


async def until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, T], disconnect: Disconnect | None = None
) -> T:
    """The result of ``work``. Raises ``ClientDisconnect`` if the client leaves before.

    The request's body must have been read. Cancelled work has ended when this raises. Work for a
    client that has already left is not started, so the caller must clean up what it would have.
    ``disconnect`` needs no task to see that the client has left; if it is None, a task asks
    ``receive``.
    """
    if disconnect is not None:
        return await _until_left(disconnect, work)
    disconnect = Disconnect()
    watching = asyncio.create_task(_watch(receive, disconnect))
    try:
        return await _until_left(disconnect, work)
    finally:
        # It is not awaited: a cancellation that came while waiting would lose the result, with the
        # resources that it may hold.
        watching.cancel()


async def _until_left(disconnect: Disconnect, work: Coroutine[Any, Any, T]) -> T:
    # The work runs in this task, not in one of its own: so a caller that is cancelled either
    # cancels the work or has its result, with no moment in between.
    if disconnect.has_left:
        work.close()
        raise ClientDisconnect
    try:
        async with asyncio.timeout(None) as cut:  # runs out when the client leaves
            disconnect.on_leave = partial(cut.reschedule, 0.0)
            try:
                return await work
            finally:
                disconnect.on_leave = None
    except TimeoutError:
        if cut.expired():
            raise ClientDisconnect from None
        raise


async def _watch(receive: Receive, disconnect: Disconnect) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        disconnect.leave()
