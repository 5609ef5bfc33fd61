"""Resumable streams: they continue for a while without a reader, and any number can read them.

    generation ──► recorder ──► StreamLog ──► reader, reader, ... (each may leave and come back)
                                   │    └───► Peers ──► readers at other workers
                                   └──► StreamArchive, once it has ended

A reader that leaves changes nothing, unless it was the last one and none comes back within the
grace time; then the generation is ended. ``stop`` ends it at once, for all readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol
from uuid import UUID

from gateway.concurrency.owned_tasks import OwnedTasks
from gateway.errors import ApiError, RateLimited, StreamNotFound, to_api_error
from gateway.generation.events import Channel, Event, Frame, TextForm, TextSink, as_message, as_sse
from gateway.peers.peers import PeerGone, Peers
from gateway.peers.routed_ids import mint, worker_of
from gateway.peers.wire import Follow, ForgetStream, StopStream
from gateway.streams.archive import StreamArchive
from gateway.streams.keyed_reader import KeyedReader, Readers
from gateway.streams.log import StreamLog, StreamReader, stream_not_found
from gateway.streams.record import Cursor, Take
from tenants.errors import TenantsError
from tenants.outage import CALM_S, OutageLog
from tenants.shared import StreamKind
from tenants.types import Principal

logger = logging.getLogger(__name__)

MAX_READERS = 16
"""Readers of one running stream at once. Each of its tokens is sent to all of them, and only one of
them is paid for."""

_FRAMES: Mapping[StreamKind, Frame] = {"sse": as_sse, "ws": as_message, "answer": as_message}


class Work(Protocol):
    """What produces the items of a stream, such as an ``Answer``."""

    def events(self, channel: Channel) -> AsyncGenerator[Sequence[Event], None]:
        """All events, except those that are given to ``channel``."""

    def heartbeat(self) -> Event | None:
        """The event that ``LocalReader.beat`` adds; None if there is none now."""

    def cut(self, error: ApiError) -> Event:
        """The last event if ``events`` raises."""

    def cancel(self) -> None:
        """End it because the client asked for it: it ends soon, with what there is until now."""

    def close(self) -> None:
        """Stop it if it still runs. Idempotent."""


class LogChannel:
    """The ``Channel`` into a stream's log."""

    is_free = True

    def __init__(self, log: StreamLog, stream_id: str, kind: StreamKind) -> None:
        self._log = log
        self._stream_id = stream_id
        self._frame = _FRAMES[kind]

    def put(self, events: Sequence[Event]) -> None:
        self._log.append(self._stream_id, [*map(self._frame, events)])

    def text_sink(self, form: TextForm) -> TextSink | None:
        return self._log.text_sink(self._stream_id, form, self._frame)


class _Running:
    """A stream whose work has not ended."""

    __slots__ = (
        "channel",
        "grace",
        "is_detached",
        "is_given_up",
        "num_readers",
        "task",
        "work",
    )

    def __init__(self, work: Work, channel: LogChannel, *, is_detached: bool) -> None:
        self.work = work
        self.channel = channel
        self.is_detached = is_detached
        self.is_given_up = False
        """Whether it is being ended, because nobody came back within the grace time."""
        self.num_readers = 0
        self.grace: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def give_up(self) -> None:
        self.is_given_up = True
        self.work.close()

    def cancel_grace(self) -> None:
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None


class LocalReader:
    """A ``StreamReader`` of a stream that this worker runs, or still keeps in memory."""

    __slots__ = ("_closed", "_cursor", "_owner", "stream_id")

    def __init__(self, owner: Streams, stream_id: str, after: int) -> None:
        self.stream_id = stream_id
        self._owner = owner
        self._cursor = Cursor(after)
        self._closed = False
        owner._attach(stream_id)

    def __aiter__(self) -> LocalReader:
        return self

    async def __anext__(self) -> Sequence[bytes]:
        items = await self._owner._log.read(self.stream_id, self._cursor)
        if not items:
            raise StopAsyncIteration
        return items

    def divert(self, take: Take) -> None:
        """Offer ``take`` the items that come while this reader waits for the next ones."""
        self._cursor.take = take

    async def beat(self) -> None:
        """Have a heartbeat sent to all readers, unless another reader just did."""
        await self._owner._beat(self.stream_id)

    def stop(self) -> None:
        """As ``Streams.stop``."""
        self._owner._cancel(self.stream_id)

    def close(self) -> None:
        """Stop reading. Idempotent. The stream continues; if this was its last reader, for the
        grace time."""
        if not self._closed:
            self._closed = True
            self._owner._detach(self.stream_id)


class Streams:
    """The resumable streams of this gateway. It owns the work that it is given."""

    def __init__(
        self,
        log: StreamLog,
        archive: StreamArchive,
        peers: Peers,
        *,
        grace_s: float,
        heartbeat_s: float,
        retention_s: float,
    ) -> None:
        """``grace_s``: how long a stream runs without a reader. ``heartbeat_s``: the silence after
        which readers call ``beat``. ``retention_s``: how long a stream can be read after its
        end."""
        self._log = log
        self._archive = archive
        self._peers = peers
        self._grace_s = grace_s
        self._heartbeat_s = heartbeat_s
        self._retention_s = retention_s
        self._running: dict[str, _Running] = {}
        self.readers = Readers()
        """The open readers that ``follow_as`` has made."""
        self._archiving = OwnedTasks()
        self._unkept = OutageLog(logger, calm_s=CALM_S)
        peers.follow_here = self._follow_for_peer
        peers.answer(StopStream, self._stop_for_peer)
        peers.answer(ForgetStream, self._forget_for_peer)

    def new_id(self) -> str:
        """An id for a stream of this worker. Its 160 random bits cannot be guessed."""
        return mint("stream", self._peers.worker_id)

    async def open(
        self,
        stream_id: str,
        work: Work,
        *,
        tenant_id: UUID,
        kind: StreamKind,
        is_detached: bool = False,
        retention_s: float | None = None,
    ) -> LocalReader:
        """Record the events of ``work``, and return the first reader.

        Heartbeats are recorded too, so that all readers count the same items. ``is_detached``: the
        work runs to its end even without readers. ``retention_s``: how long the stream can be read
        after its end, if not as long as others. Raises ``RateLimited`` as ``StreamLog.create``
        does; ``work`` is closed then.
        """
        try:
            await self._log.create(stream_id, tenant_id, kind)
        except BaseException:
            work.close()
            raise
        channel = LogChannel(self._log, stream_id, kind)
        running = _Running(work, channel, is_detached=is_detached)
        self._running[stream_id] = running
        running.task = asyncio.create_task(
            self._record(stream_id, running),
            name=f"record {stream_id}",
        )
        running.task.add_done_callback(
            lambda _: self._keep(stream_id, tenant_id, kind, retention_s or self._retention_s)
        )
        return LocalReader(self, stream_id, 0)

    async def follow(
        self, stream_id: str, tenant_id: UUID, *, kind: StreamKind, after: int
    ) -> StreamReader:
        """Read a stream from position ``after`` on, whichever worker has it.

        Raises as ``StreamLog.check`` does, ``RateLimited`` if it runs and has as many readers as it
        may have, and ``TenantsError``.
        """
        try:
            if (worker_id := self._worker_elsewhere(stream_id)) is None:
                return await self._follow_here(stream_id, tenant_id, kind, after)
            wanted = Follow(stream_id=stream_id, tenant_id=tenant_id, kind=kind, after=after)
            return await self._peers.follow(worker_id, wanted)
        except (StreamNotFound, PeerGone):
            return await self._archive.open(stream_id, tenant_id, kind=kind, after=after)

    async def follow_as(
        self, principal: Principal, stream_id: str, *, kind: StreamKind, after: int
    ) -> KeyedReader:
        """As ``follow``, but only as long as the principal's key is valid."""
        reader = await self.follow(stream_id, principal.tenant.id, kind=kind, after=after)
        return KeyedReader(reader, principal, self.readers)

    async def _follow_here(
        self, stream_id: str, tenant_id: UUID, kind: StreamKind, after: int
    ) -> LocalReader:
        await self._log.check(stream_id, tenant_id, kind=kind, after=after)
        running = self._running.get(stream_id)
        if kind == "answer" and running is not None and running.is_given_up:
            # It will break off, and a client that repeats its request must get a whole answer.
            raise stream_not_found()
        if running is not None and running.num_readers >= MAX_READERS:
            raise RateLimited(
                f"{MAX_READERS} clients read this stream already; close one of them, or read it "
                "when it has ended.",
                code="too_many_readers",
                retry_after_s=1,
            )
        return LocalReader(self, stream_id, after)

    async def stop(self, stream_id: str, tenant_id: UUID) -> None:
        """End a stream because its client asked for it. What was recorded can still be read. Does
        nothing if the stream has ended.

        Raises ``StreamNotFound`` or ``TenantsError``.
        """
        try:
            if (worker_id := self._worker_elsewhere(stream_id)) is None:
                await self._log.check(stream_id, tenant_id)
                self._cancel(stream_id)
            else:
                wanted = StopStream(stream_id=stream_id, tenant_id=tenant_id)
                await self._peers.ask(worker_id, wanted)
        except (StreamNotFound, PeerGone):
            await self._archive.check(stream_id, tenant_id)

    async def forget(self, stream_id: str, tenant_id: UUID) -> None:
        """Delete a stream's items, whichever worker has them. Does nothing if the stream is unknown
        or another tenant's."""
        if (worker_id := self._worker_elsewhere(stream_id)) is None:
            await self._log.forget(stream_id, tenant_id)
        else:
            with contextlib.suppress(PeerGone, ApiError):  # The items are gone, or will be soon.
                wanted = ForgetStream(stream_id=stream_id, tenant_id=tenant_id)
                await self._peers.ask(worker_id, wanted)
        await self._archive.delete(stream_id, tenant_id)

    def _worker_elsewhere(self, stream_id: str) -> str | None:
        worker_id = worker_of(stream_id)
        return None if worker_id == self._peers.worker_id else worker_id

    async def _follow_for_peer(self, wanted: Follow) -> LocalReader:
        return await self._follow_here(
            wanted.stream_id, wanted.tenant_id, wanted.kind, wanted.after
        )

    async def _stop_for_peer(self, wanted: StopStream) -> bytes:
        await self._log.check(wanted.stream_id, wanted.tenant_id)
        self._cancel(wanted.stream_id)
        return b""

    async def _forget_for_peer(self, wanted: ForgetStream) -> bytes:
        await self._log.forget(wanted.stream_id, wanted.tenant_id)
        return b""

    async def close(self) -> None:
        """End all running streams, and wait until they are archived."""
        left = list(self._running.values())
        tasks = [running.task for running in left if running.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for running in left:  # A task that was cancelled before its first step has not done this.
            running.cancel_grace()
            running.work.close()
        self._running.clear()
        await asyncio.sleep(0)  # the callbacks of those tasks
        await self._archiving.wait()

    async def _record(self, stream_id: str, running: _Running) -> None:
        work, channel = running.work, running.channel
        try:
            async with aclosing(work.events(channel)) as body:
                async for events in body:
                    channel.put(events)
        except Exception as exc:  # Readers must not mistake it for the end.
            channel.put([work.cut(to_api_error(exc))])
        finally:
            work.close()
            running.cancel_grace()
            self._running.pop(stream_id, None)
            await self._log.end(stream_id)

    def _keep(self, stream_id: str, tenant_id: UUID, kind: StreamKind, retention_s: float) -> None:
        """Archive an ended stream in a task of its own, so that readers need not wait for it."""
        self._archiving.start(
            self._put_away(stream_id, tenant_id, kind, retention_s), name=f"archive {stream_id}"
        )

    async def _put_away(
        self, stream_id: str, tenant_id: UUID, kind: StreamKind, retention_s: float
    ) -> None:
        kept = self._log.kept(stream_id)
        if kept is None or not kept.items:
            return
        try:
            await self._archive.put(stream_id, tenant_id, kind, kept, retention_s=retention_s)
        except TenantsError as error:  # The log stays in memory for a while.
            self._unkept.failed("%s is kept by this worker only: %s", stream_id, error)
        else:
            self._unkept.succeeded("Streams are kept again")

    def _attach(self, stream_id: str) -> None:
        self._log.attach(stream_id)
        if (running := self._running.get(stream_id)) is not None:
            running.num_readers += 1
            running.cancel_grace()

    def _detach(self, stream_id: str) -> None:
        self._log.detach(stream_id)
        running = self._running.get(stream_id)
        if running is None:
            return
        running.num_readers -= 1
        if not running.num_readers and not running.is_detached:
            loop = asyncio.get_running_loop()
            # The recorder will read from the closed work why it ended, and record that.
            running.grace = loop.call_later(self._grace_s, running.give_up)

    def _cancel(self, stream_id: str) -> None:
        if (running := self._running.get(stream_id)) is not None:
            running.work.cancel()

    async def _beat(self, stream_id: str) -> None:
        running = self._running.get(stream_id)
        if running is None:
            return
        silence_s = asyncio.get_running_loop().time() - self._log.appended_at(stream_id)
        # Several readers notice the same silence; the first one's heartbeat is for all.
        if silence_s >= self._heartbeat_s / 2 and (event := running.work.heartbeat()) is not None:
            running.channel.put([event])
