"""Workers that hang, break off or say what they should not: whoever asked them is told, and no
connection stays."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import zmq
import zmq.asyncio

from gateway.errors import Gone, Unavailable
from gateway.peers import peers
from gateway.peers import wire as peer_wire
from gateway.peers.peers import Caller, PeerGone, Peers
from gateway.peers.wire import (
    Ended,
    Failed,
    Follow,
    Following,
    Items,
    RedeemTicket,
    Request,
    Value,
    Wire,
    decode,
    prepare,
)
from tenants.errors import StoreUnavailable
from tests.gateway.peering import KEYS, listening, make_peers, overheard
from tests.gateway.serving import until
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio

WORKER = "other"
FOLLOW = Follow(stream_id="s", tenant_id=uuid4(), kind="sse", after=0)
Behave = Callable[[zmq.asyncio.Socket, Caller], Awaitable[None]]


@asynccontextmanager
async def beside(
    folder: Path, behave: Behave, *, lease: timedelta = timedelta(days=1)
) -> AsyncIterator[Peers]:
    """This worker, and another one that behaves so with who asks it first."""
    shared = MemoryStore().shared
    path = folder / "socket"
    router = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    prepare(router, KEYS)
    router.curve_server = True
    router.bind(f"ipc://{path}")
    behaving = asyncio.create_task(_behave(router, behave))
    await shared.register_worker(WORKER, f"ipc://{path}", lease)
    try:
        yield make_peers(shared)
    finally:
        behaving.cancel()
        await asyncio.gather(behaving, return_exceptions=True)
        router.close(0)


async def _behave(router: zmq.asyncio.Socket, behave: Behave) -> None:
    while True:
        identity, data = await router.recv_multipart()
        if isinstance(decode(data), Request):
            await behave(router, Caller(router, identity))


def answers(*messages: peer_wire.Message) -> Behave:
    async def behave(router: zmq.asyncio.Socket, caller: Caller) -> None:
        for message in messages:
            caller.send(message)

    return behave


async def breaks_off(router: zmq.asyncio.Socket, caller: Caller) -> None:
    router.close(0)


async def says_noise(router: zmq.asyncio.Socket, caller: Caller) -> None:
    await router.send_multipart([caller.identity, b"\x81\xa4type\xa5Value\xff"])


async def test_a_worker_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event loop stands still, so that its authenticator does not answer."""
    monkeypatch.setattr(peers, "CONNECT_S", 0.05)
    shared = MemoryStore().shared
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        await shared.register_worker(WORKER, f"ipc://{tmp_path}/socket", timedelta(days=1))
        here = make_peers(shared)
        for asking in (here.ask(WORKER, RedeemTicket("x")), here.follow(WORKER, FOLLOW)):
            with pytest.raises(Unavailable) as caught:
                await asking
            assert caught.value.code == "worker_lost"
        await shared.register_worker(WORKER, f"ipc://{tmp_path}/socket", timedelta(0))
        with pytest.raises(PeerGone):  # nor does anybody renew its lease
            await here.ask(WORKER, RedeemTicket("x"))


@pytest.mark.parametrize(
    "behave", [breaks_off, says_noise, answers(Ended()), answers(Items([b"x"]))]
)
@pytest.mark.parametrize("asks", ["ask", "follow"])
async def test_a_worker_that_breaks_off_or_the_protocol_is_lost(
    tmp_path: Path, behave: Behave, asks: str
) -> None:
    async with beside(tmp_path, behave) as here:
        asking = (
            here.ask(WORKER, RedeemTicket("x")) if asks == "ask" else here.follow(WORKER, FOLLOW)
        )
        with pytest.raises(Unavailable) as caught:
            await asking
        assert caught.value.code == "worker_lost"


async def test_what_was_said_before_a_worker_broke_off_is_read(tmp_path: Path) -> None:
    async with beside(tmp_path, answers(Following(), Items([b"a"]), Value(b"odd"))) as here:
        reader = await here.follow(WORKER, FOLLOW)
        assert list(await anext(reader)) == [b"a"]
        with pytest.raises(Unavailable):
            await anext(reader)
        reader.close()
        reader.close()
        await reader.beat()  # to nobody


async def test_a_stream_that_fails_at_its_worker_fails_the_same_way_here(tmp_path: Path) -> None:
    failed = Failed.of(Gone("Too slow.", code="stream_position_gone"))
    async with beside(tmp_path, answers(Following(), failed)) as here:
        reader = await here.follow(WORKER, FOLLOW)
        with pytest.raises(Gone, match="Too slow") as caught:
            await anext(reader)
        assert caught.value.code == "stream_position_gone"
        reader.close()


@pytest.mark.parametrize(
    "address", ["ipc://{folder}/nobody", "tcp://127.0.0.1:{port}", "unix:{folder}/older"]
)
async def test_where_nobody_listens_any_more_the_worker_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    shared = MemoryStore().shared
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        where = address.format(folder=tmp_path, port=unheard.getsockname()[1])
        await shared.register_worker(WORKER, where, timedelta(days=1))
        with pytest.raises(PeerGone):
            await make_peers(shared).ask(WORKER, RedeemTicket("x"))
    assert where in caplog.text or where.startswith("unix:")


async def test_a_worker_that_lives_is_asked_although_its_lease_has_run_out(tmp_path: Path) -> None:
    """As all have at once when the store's clock is set forward."""
    said = answers(Following(), Items([b"a"]), Ended())
    async with beside(tmp_path, said, lease=timedelta(0)) as here:
        reader = await here.follow(WORKER, FOLLOW)
        assert [items async for items in reader] == [[b"a"]]
        reader.close()


class Reading:
    """A stream that says nothing, or fails."""

    stream_id = "s"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.num_closed = 0

    def __aiter__(self) -> Reading:
        return self

    async def __anext__(self) -> list[bytes]:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        raise AssertionError

    def close(self) -> None:
        self.num_closed += 1


@pytest.mark.parametrize("how", ["odd", "dies"])
async def test_a_follower_that_says_what_it_should_not_or_nothing_more_has_left(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PROBE_S", 0.02)
    shared, reading = MemoryStore().shared, Reading()
    there = make_peers(shared)

    async def follow(wanted: Follow) -> Reading:
        return reading

    there.follow_here = follow  # type: ignore[assignment]
    async with listening(there, shared):
        found = await shared.find_worker(there.worker_id)
        assert found is not None
        wire = Wire(found.address, KEYS)
        await wire.opened()
        wire.post(FOLLOW)
        await wire.receive(Following)
        if how == "odd":
            wire.post(Value(b"odd"))
        else:
            wire.close()
        await until(lambda: reading.num_closed == 1)
        wire.close()


async def test_a_host_that_vanishes_is_noticed_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connections are never closed: what is sent there is lost."""
    monkeypatch.setattr(peers, "PROBE_S", 0.05)
    monkeypatch.setattr(peer_wire, "HEARTBEAT_MS", 100)
    monkeypatch.setattr(peer_wire, "SILENCE_MS", 300)
    shared, reading, has_vanished = MemoryStore().shared, Reading(), False
    there = make_peers(shared, host="127.0.0.1")

    async def follow(wanted: Follow) -> Reading:
        return reading

    there.follow_here = follow  # type: ignore[assignment]
    async with listening(there, shared):
        found = await shared.find_worker(there.worker_id)
        assert found is not None
        port = int(found.address.rpartition(":")[2])
        async with overheard(port, [], lambda: not has_vanished) as between:
            address = f"tcp://127.0.0.1:{between}"
            await shared.register_worker(there.worker_id, address, timedelta(days=1))
            reader = await make_peers(shared).follow(there.worker_id, FOLLOW)
            await asyncio.sleep(0.6)
            assert reading.num_closed == 0  # silence alone is no loss
            has_vanished = True
            with pytest.raises(Unavailable):
                await anext(reader)
            await until(lambda: reading.num_closed == 1)
            reader.close()


async def test_a_slow_follower_holds_up_the_stream_and_not_the_worker() -> None:
    taken = 0

    class Endless(Reading):
        async def __anext__(self) -> list[bytes]:
            nonlocal taken
            taken += 1
            await asyncio.sleep(0)
            return [b"x" * 1000]

    shared = MemoryStore().shared
    there = make_peers(shared)

    async def follow(wanted: Follow) -> Reading:
        return Endless()

    async def redeem(request: RedeemTicket) -> bytes:
        return b"y"

    there.follow_here = follow  # type: ignore[assignment]
    there.answer(RedeemTicket, redeem)
    async with listening(there, shared):
        here = make_peers(shared)
        reader = await here.follow(there.worker_id, FOLLOW)
        await until(lambda: taken == peer_wire.WINDOW + 1)
        assert await here.ask(there.worker_id, RedeemTicket("x")) == b"y"
        assert taken == peer_wire.WINDOW + 1
        for _ in range(50):
            assert list(await anext(reader)) == [b"x" * 1000]
        reader.close()


async def test_a_reader_that_fails_is_told_of_and_closed() -> None:
    shared, reading = MemoryStore().shared, Reading(Gone("Too slow."))
    there = make_peers(shared)

    async def follow(wanted: Follow) -> Reading:
        return reading

    there.follow_here = follow  # type: ignore[assignment]
    async with listening(there, shared):
        reader = await make_peers(shared).follow(there.worker_id, FOLLOW)
        with pytest.raises(Gone, match="Too slow"):
            await anext(reader)
        await until(lambda: reading.num_closed == 1)
        reader.close()


async def test_a_store_that_is_away_is_told_later_where_this_worker_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "LEASE", timedelta(seconds=0.03))
    shared = MemoryStore().shared
    register, num_refused = shared.register_worker, 0

    async def away(worker_id: str, address: str, lease: timedelta) -> None:
        nonlocal num_refused
        num_refused += 1
        if num_refused < 4:
            raise StoreUnavailable("away")
        await register(worker_id, address, timedelta(days=1))

    monkeypatch.setattr(shared, "register_worker", away)
    async with listening(make_peers(shared), shared):
        await until(lambda: "Other workers find this one again" in caplog.text)
        assert caplog.text.count("Other workers do not find this one: away") == 1
