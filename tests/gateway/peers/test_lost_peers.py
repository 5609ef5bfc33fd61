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

from gateway.errors import Gone, Unavailable
from gateway.peers import peers
from gateway.peers import wire as peer_wire
from gateway.peers.peers import PeerGone, Peers
from gateway.peers.wire import (
    Ended,
    Failed,
    Follow,
    Following,
    Items,
    RedeemTicket,
    Value,
    Wire,
    greet,
    introduce,
)
from tenants.errors import StoreUnavailable
from tenants.memory import MemoryStore
from tests.gateway.peering import SECRET, listening, make_peers
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio

WORKER = "other"
FOLLOW = Follow(stream_id="s", tenant_id=uuid4(), kind="sse", after=0)
Behave = Callable[[Wire], Awaitable[None]]


@asynccontextmanager
async def beside(
    folder: Path, behave: Behave, *, lease: timedelta = timedelta(days=1)
) -> AsyncIterator[tuple[Peers, list[asyncio.Task[None]]]]:
    """This worker, and another one that behaves so; with the connections that it has."""
    shared = MemoryStore().shared
    connections: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.append(task)
        try:
            await behave(Wire(reader, writer))
            await reader.read()  # until the other side has left
        finally:
            writer.close()

    path = folder / "socket"
    server = await asyncio.start_unix_server(serve, path)
    await shared.register_worker(WORKER, f"unix:{path}", lease)
    try:
        yield make_peers(shared), connections
        await until(lambda: all(task.done() for task in connections), within_s=5.0)
    finally:
        server.close()
        for task in connections:
            task.cancel()


async def silent(wire: Wire) -> None:
    """As a worker whose event loop stands still."""


def answers(*messages: peer_wire.Message) -> Behave:
    async def behave(wire: Wire) -> None:
        await greet(wire, SECRET)
        await wire.receive_any()
        for message in messages:
            await wire.send(message)

    return behave


async def breaks_off(wire: Wire) -> None:
    await greet(wire, SECRET)
    await wire.receive_any()
    wire.close()


async def test_a_worker_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_wire, "HANDSHAKE_S", 0.05)
    async with beside(tmp_path, silent) as (here, connections):
        for asking in (here.ask(WORKER, RedeemTicket("x")), here.follow(WORKER, FOLLOW)):
            with pytest.raises(Unavailable) as caught:
                await asking
            assert caught.value.code == "worker_lost"
        assert len(connections) == 2


async def test_who_gives_up_amid_the_handshake_hangs_up(tmp_path: Path) -> None:
    async with beside(tmp_path, silent) as (here, connections):
        asking = asyncio.create_task(here.ask(WORKER, RedeemTicket("x")))
        await until(lambda: connections)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        # Else the collector would close it some day, with a warning, which is an error here.


@pytest.mark.parametrize("behave", [breaks_off, answers(Ended()), answers(Items([b"x"]))])
async def test_a_worker_that_breaks_off_or_the_protocol_is_lost(
    tmp_path: Path, behave: Behave
) -> None:
    async with beside(tmp_path, behave) as (here, _):
        for asking in (here.ask(WORKER, RedeemTicket("x")), here.follow(WORKER, FOLLOW)):
            with pytest.raises(Unavailable) as caught:
                await asking
            assert caught.value.code == "worker_lost"


async def test_what_was_said_before_a_worker_broke_off_is_read(tmp_path: Path) -> None:
    async with beside(tmp_path, answers(Following(), Items([b"a"]), Value(b"odd"))) as (here, _):
        reader = await here.follow(WORKER, FOLLOW)
        assert list(await anext(reader)) == [b"a"]
        with pytest.raises(Unavailable):
            await anext(reader)
        reader.close()
        reader.close()
        await reader.beat()  # to nobody


async def test_a_stream_that_fails_at_its_worker_fails_the_same_way_here(tmp_path: Path) -> None:
    failed = Failed.of(Gone("Too slow.", code="stream_position_gone"))
    async with beside(tmp_path, answers(Following(), failed)) as (here, _):
        reader = await here.follow(WORKER, FOLLOW)
        with pytest.raises(Gone, match="Too slow") as caught:
            await anext(reader)
        assert caught.value.code == "stream_position_gone"
        reader.close()


@pytest.mark.parametrize("address", ["unix:{folder}/nobody", "127.0.0.1:{port}"])
async def test_where_nobody_listens_any_more_the_worker_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    where = address.format(folder=tmp_path, port=port)
    shared = MemoryStore().shared
    await shared.register_worker(WORKER, where, timedelta(days=1))
    with pytest.raises(PeerGone):
        await make_peers(shared).ask(WORKER, RedeemTicket("x"))
    assert where in caplog.text


@pytest.mark.parametrize("behave", [silent, breaks_off])
async def test_without_a_lease_a_worker_that_does_not_answer_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behave: Behave
) -> None:
    monkeypatch.setattr(peer_wire, "HANDSHAKE_S", 0.05)
    async with beside(tmp_path, behave, lease=timedelta(0)) as (here, _):
        with pytest.raises(PeerGone if behave is silent else Unavailable):
            await here.follow(WORKER, FOLLOW)


async def test_a_worker_that_lives_is_asked_although_its_lease_has_run_out(tmp_path: Path) -> None:
    """As all have at once when the store's clock is set forward."""
    said = answers(Following(), Items([b"a"]), Ended())
    async with beside(tmp_path, said, lease=timedelta(0)) as (here, _):
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


async def test_a_follower_that_says_what_it_should_not_has_left() -> None:
    shared, reading = MemoryStore().shared, Reading()
    there = make_peers(shared)

    async def follow(wanted: Follow) -> Reading:
        return reading

    there.follow_here = follow  # type: ignore[assignment]
    async with listening(there, shared):
        found = await shared.find_worker(there.worker_id)
        assert found is not None
        wire = Wire(*await asyncio.open_unix_connection(found.address.removeprefix("unix:")))
        await introduce(wire, SECRET)
        await wire.send(FOLLOW)
        await wire.receive(Following)
        await wire.send(Value(b"odd"))
        with pytest.raises(peer_wire.WireError):
            await wire.receive_any()
        await until(lambda: reading.num_closed == 1)
        wire.close()


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
