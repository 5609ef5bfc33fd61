"""A stream reads the same wherever its items are: in this worker, in another, or in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.errors import InvalidRequestError, StreamNotFound
from gateway.streams.log import StreamReader
from tenants.shared import StreamKind
from tests.gateway.peering import listening
from tests.gateway.peers.test_peers import ITEMS, Site

pytestmark = pytest.mark.asyncio

Follow = Callable[..., Awaitable[StreamReader]]
WHOLE = [*ITEMS, b"last"]


@pytest_asyncio.fixture(params=["here", "in another worker", "in the store"])
async def follow(request: pytest.FixtureRequest) -> AsyncIterator[Follow]:
    """Of a stream that has ended, from where its items are."""
    site = Site()
    async with listening(site.peers[0], site.shared):
        stream_id = await site.open()
        await site.streams[0].stop(stream_id, site.tenant.id)
        ended = await site.follow(stream_id)
        assert await whole(ended) == WHOLE
        ended.close()
        number = 0 if request.param == "here" else 1

        async def read_from(
            after: int = 0, *, kind: StreamKind = "ws", is_stranger: bool = False, id_: str = ""
        ) -> StreamReader:
            tenant_id = uuid4() if is_stranger else site.tenant.id
            return await site.streams[number].follow(
                id_ or stream_id, tenant_id, kind=kind, after=after
            )

        if request.param != "in the store":
            yield read_from
        await site.streams[0].close()
    if request.param == "in the store":
        yield read_from


async def whole(reader: StreamReader) -> list[bytes]:
    return [item async for items in reader for item in items]


@pytest.mark.parametrize("after", [0, 1, 40, len(WHOLE) - 1, len(WHOLE)])
async def test_it_is_read_from_any_position_to_its_end(follow: Follow, after: int) -> None:
    reader = await follow(after)
    assert await whole(reader) == WHOLE[after:]
    reader.close()


async def test_what_has_ended_takes_a_beat_a_stop_and_two_closings(follow: Follow) -> None:
    reader = await follow()
    reader.divert(lambda item, now: True)
    await reader.beat()
    reader.stop()
    assert await whole(reader) == WHOLE, "what it has said is not offered again, nor lost"
    reader.close()
    reader.close()
    again = await follow()
    assert await whole(again) == WHOLE
    again.close()


async def test_a_position_it_never_reached_is_refused(follow: Follow) -> None:
    with pytest.raises(InvalidRequestError, match=str(len(WHOLE))):
        await follow(len(WHOLE) + 1)


async def test_it_is_not_there_for_others(follow: Follow) -> None:
    for fields in ({"is_stranger": True}, {"kind": "sse"}):
        with pytest.raises(StreamNotFound) as caught:
            await follow(**fields)
        assert caught.value.message == await _of_nothing(follow)


async def _of_nothing(follow: Follow) -> str:
    """What is said of an id that nobody ever had."""
    reader = await follow()
    worker = reader.stream_id[:-40]
    reader.close()
    with pytest.raises(StreamNotFound) as caught:
        await follow(id_=worker + "0" * 40)
    return caught.value.message
