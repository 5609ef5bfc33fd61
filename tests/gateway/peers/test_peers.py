from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.errors import ApiError, RateLimited, StreamNotFound, Unavailable
from gateway.generation.events import Channel, Event
from gateway.peers.peers import PeerGone, own_folder, sweep
from gateway.peers.wire import Keys, RedeemTicket, StopStream, derive_keys
from gateway.streams.log import StreamLog, StreamReader
from gateway.streams.streams import Streams
from tenants.shared import SharedState
from tests.gateway.peering import KEYS, listening, make_archive, make_peers, overheard
from tests.gateway.serving import until
from tests.memory_store.store import MemoryStore

ITEMS = [b"%d" % number * 50 for number in range(600)]


class Work:
    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.closed = 0

    def cancel(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed += 1
        self.stopped.set()

    def heartbeat(self) -> Event:
        return Event("", b"beat")

    def cut(self, error: ApiError) -> Event:
        return Event("", b"cut")

    async def events(self, channel: Channel) -> AsyncGenerator[list[Event], None]:
        for start in range(0, len(ITEMS), 40):
            yield [Event("", item) for item in ITEMS[start : start + 40]]
            await asyncio.sleep(0)
        await self.stopped.wait()
        yield [Event("", b"last")]


class Site:
    """Two workers over one store; the first runs a stream."""

    def __init__(self) -> None:
        store = MemoryStore()
        self.store = store
        self.shared: SharedState = store.shared
        self.peers = [make_peers(self.shared) for _ in range(2)]
        self.streams = [
            Streams(
                StreamLog(max_stream_bytes=10**6, max_tenant_bytes=10**7, retention_s=60),
                make_archive(self.shared),
                peers,
                grace_s=0.5,
                heartbeat_s=0,
                retention_s=60,
            )
            for peers in self.peers
        ]
        self.work = Work()

    async def open(self) -> str:
        self.tenant = await self.store.create_tenant("acme")
        stream_id = self.streams[0].new_id()
        reader = await self.streams[0].open(
            stream_id, self.work, tenant_id=self.tenant.id, kind="ws"
        )
        reader.close()
        return stream_id

    async def follow(self, stream_id: str, after: int = 0) -> StreamReader:
        """From the worker that does not run it."""
        return await self.streams[1].follow(stream_id, self.tenant.id, kind="ws", after=after)


async def read(reader: StreamReader, count: int) -> list[bytes]:
    items: list[bytes] = []
    while len(items) < count:
        items += await anext(reader)  # type: ignore[call-overload]
    return items


@pytest.mark.asyncio
async def test_a_stream_is_read_stopped_and_kept_from_another_worker() -> None:
    site = Site()
    async with listening(site.peers[0], site.shared):
        stream_id = await site.open()
        reader = await site.follow(stream_id, 7)
        assert await read(reader, len(ITEMS) - 7) == ITEMS[7:]
        await asyncio.sleep(0.6)
        assert site.work.closed == 0  # somebody reads, if not here
        await reader.beat()
        assert await read(reader, 1) == [b"beat"]
        await site.streams[1].stop(stream_id, site.tenant.id)
        assert await read(reader, 1) == [b"last"]
        with pytest.raises(StopAsyncIteration):
            await anext(reader)  # type: ignore[call-overload]
        reader.close()
        # While its worker is there it answers; afterwards the store does.
        again = await site.follow(stream_id)
        whole = [*ITEMS, b"beat", b"last"]
        assert await read(again, len(whole)) == whole
        again.close()
        await site.streams[0].close()
    later = await site.follow(stream_id, 5)
    assert await read(later, len(whole) - 5) == whole[5:]
    await site.streams[1].stop(stream_id, site.tenant.id)
    await site.streams[1].forget(stream_id, site.tenant.id)
    with pytest.raises(StreamNotFound):
        await site.follow(stream_id)


@pytest.mark.asyncio
async def test_a_follower_that_leaves_counts_as_a_reader_that_leaves() -> None:
    site = Site()
    async with listening(site.peers[0], site.shared):
        reader = await site.follow(await site.open())
        await read(reader, 1)
        reader.close()
        await until(lambda: site.work.closed)
        await site.streams[0].close()


@pytest.mark.asyncio
async def test_stopping_through_the_reader() -> None:
    site = Site()
    async with listening(site.peers[0], site.shared):
        reader = await site.follow(await site.open())
        reader.stop()
        assert (await read(reader, len(ITEMS) + 1))[-1] == b"last"
        reader.close()
        await site.streams[0].close()


@pytest.mark.asyncio
async def test_ids_are_nothing_to_another_tenant() -> None:
    site = Site()
    async with listening(site.peers[0], site.shared):
        stream_id = await site.open()
        for call in (
            site.streams[1].follow(stream_id, uuid4(), kind="ws", after=0),
            site.streams[1].follow(stream_id, site.tenant.id, kind="sse", after=0),
            site.streams[1].stop(stream_id, uuid4()),
        ):
            with pytest.raises(StreamNotFound):
                await call
        await site.streams[1].forget(stream_id, uuid4())
        assert not site.work.stopped.is_set()
        await site.streams[1].forget(stream_id, site.tenant.id)
        with pytest.raises(StreamNotFound):
            await site.follow(stream_id)
        await site.streams[0].close()


@pytest.mark.asyncio
async def test_a_worker_that_dies_cuts_its_followers_off() -> None:
    site = Site()
    async with listening(site.peers[0], site.shared):
        reader = await site.follow(await site.open())
    with pytest.raises(Unavailable) as caught:
        await read(reader, 10**6)
    assert caught.value.code == "worker_lost"
    reader.close()
    await site.streams[0].close()


@pytest.mark.asyncio
async def test_errors_arrive_as_they_were_raised() -> None:
    shared = MemoryStore().shared
    here, there = make_peers(shared), make_peers(shared)

    async def refuse(request: RedeemTicket) -> bytes:
        if request.ticket == "odd":
            raise ValueError("nobody's business")
        raise RateLimited("slow down", code="c", param="p", retry_after_s=3, headers={"a": "b"})

    there.answer(RedeemTicket, refuse)
    async with listening(there, shared):
        with pytest.raises(RateLimited) as caught:
            await here.ask(there.worker_id, RedeemTicket("x"))
        error = caught.value
        assert (error.message, error.code, error.param) == ("slow down", "c", "p")
        assert (error.retry_after_s, error.extra_headers) == (3, {"a": "b"})
        with pytest.raises(Exception, match="failed to handle"):
            await here.ask(there.worker_id, RedeemTicket("odd"))
        with pytest.raises(Unavailable):  # nobody answers this one
            await here.ask(there.worker_id, StopStream(stream_id="s", tenant_id=uuid4()))
    with pytest.raises(PeerGone):
        await here.ask(there.worker_id, RedeemTicket("x"))


@pytest.mark.asyncio
@pytest.mark.parametrize("host", [None, "127.0.0.1"])
async def test_who_has_another_key_gets_nothing_and_one_line_says_so(
    host: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    shared = MemoryStore().shared
    there, friend = make_peers(shared, host=host), make_peers(shared)
    stranger = make_peers(shared, keys=derive_keys(b"a guess"))
    # It knows whom to talk to, but is not the one that may.
    impostor = make_peers(shared, keys=Keys(KEYS.public, derive_keys(b"a guess").secret))
    asked = []

    async def redeem(request: RedeemTicket) -> bytes:
        asked.append(request)
        return b"x"

    there.answer(RedeemTicket, redeem)
    async with listening(there, shared):
        for number, other in enumerate((stranger, impostor), 1):
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await other.ask(there.worker_id, RedeemTicket("x"))
            assert caplog.text.count("give all hosts the same tenants.secrets_file") == number
        assert asked == []
        assert await friend.ask(there.worker_id, RedeemTicket("x")) == b"x"


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_hosts_reach_each_other_over_tcp_and_nobody_between_them_reads(host: str) -> None:
    shared = MemoryStore().shared
    here, there = make_peers(shared), make_peers(shared, host=host)

    async def redeem(request: RedeemTicket) -> bytes:
        return request.ticket.encode()

    there.answer(RedeemTicket, redeem)
    async with listening(there, shared):
        found = await shared.find_worker(there.worker_id)
        assert found is not None
        assert found.address.startswith(f"tcp://{host}:")
        port = int(found.address.rpartition(":")[2])
        seen: list[bytes] = []
        async with overheard(port, seen) as between:
            address = f"tcp://127.0.0.1:{between}"
            await shared.register_worker(there.worker_id, address, timedelta(days=1))
            assert await here.ask(there.worker_id, RedeemTicket("the heron")) == b"the heron"
    heard = b"".join(seen)
    assert b"CURVE" in heard
    assert b"heron" not in heard
    assert b"RedeemTicket" not in heard


@pytest.mark.asyncio
@pytest.mark.parametrize("num_steps", range(4))
async def test_a_worker_that_ends_while_it_begins_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    """A socket left open would be a warning, so an error."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = asyncio.create_task(make_peers().run())
    while not _names(tmp_path):  # noqa: ASYNC110 (at the very step)
        await asyncio.sleep(0)
    for _ in range(num_steps):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    gc.collect()
    assert not _names(tmp_path)


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_what_killed_workers_left_is_swept_away(tmp_path: Path) -> None:
    for name in ("sluice-peer-dead", "another"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "socket").touch()
    (tmp_path / "sluice-peer-file").touch()
    living, lock = own_folder(tmp_path)
    names = {"another", "sluice-peer-file", living.name}
    assert sweep(tmp_path) == 1
    assert set(_names(tmp_path)) == names
    os.close(lock)  # as the end of a process does
    assert sweep(tmp_path) == 1
    assert set(_names(tmp_path)) == names - {living.name}


def test_a_folder_that_is_swept_away_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    made: list[str] = []

    def mkdtemp(prefix: str, dir: Path) -> str:
        made.append(make(prefix=prefix, dir=dir))
        if len(made) == 1:
            assert sweep(dir) == 1
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    folder, lock = own_folder(tmp_path)
    assert [str(folder)] == made[1:]
    assert sweep(tmp_path) == 0
    os.close(lock)
