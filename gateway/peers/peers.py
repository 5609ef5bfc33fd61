"""Requests between gateway workers, for what only one of them has.

The log of a running stream, an unused ticket and a running response are in the memory of one
worker. Their ids name that worker (``routed_ids``), and each worker registers in the store where it
listens. So a worker that is asked for another's can pass the request on. This costs nothing while
streams flow, and one row for each worker. A log in the database would cost rows for each stream and
writes for each chunk, even if no client ever comes back.

Workers of one host talk over Unix sockets in private folders; ``server.peer_host`` makes it TCP for
those of several hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from gateway.errors import ApiError, Unavailable, to_api_error
from gateway.peers.wire import (
    Beat,
    Ended,
    Failed,
    Follow,
    Following,
    Items,
    Request,
    Stop,
    Value,
    Wire,
    WireError,
    greet,
    introduce,
)
from tenants.errors import StoreUnavailable
from tenants.outage import OutageLog
from tenants.shared import SharedState, WorkerAddress

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=30)
CONNECT_S = 5.0
_UNIX = "unix:"
_PREFIX, _SOCKET = "sluice-peer-", "socket"


class PeerGone(Exception):
    """The worker has ended, and what only it had is lost."""


class Followed(Protocol):
    """A stream of this worker, as another worker reads it. ``close`` it in a ``finally``."""

    def __aiter__(self) -> AsyncIterator[Sequence[bytes]]: ...

    async def beat(self) -> None:
        """Have a heartbeat sent to all readers."""

    def stop(self) -> None:
        """End the stream's work because the client asked for it."""

    def close(self) -> None:
        """Stop reading. The stream continues."""


class Peers:
    """This worker's connection to the others."""

    def __init__(
        self, shared: SharedState, *, worker_id: str, secret: bytes, host: str | None
    ) -> None:
        """host: the address to listen on for workers of other hosts; None for this host only."""
        self.worker_id = worker_id
        self.follow_here: Callable[[Follow], Awaitable[Followed]] | None = None
        """Reads a stream of this worker; set by ``Streams``."""
        self._shared = shared
        self._secret = secret
        self._host = host
        self._handlers: dict[type, Callable[[Any], Awaitable[bytes]]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._outage = OutageLog(logger)

    def answer(self, kind: type, handler: Callable[[Any], Awaitable[bytes]]) -> None:
        """Answer requests of ``kind`` with ``handler``; what it raises is raised at the other
        side."""
        self._handlers[kind] = handler

    # -- asking

    async def ask(self, worker_id: str, request: Request) -> bytes:
        """Another worker's answer. Raises ``PeerGone``, and the ``ApiError`` that it raised."""
        wire = await self._connect(worker_id)
        try:
            await wire.send(request)
            return (await wire.receive(Value)).data
        except WireError as exc:
            raise _lost() from exc
        finally:
            wire.close()

    async def follow(self, worker_id: str, request: Follow) -> RemoteReader:
        """Read a stream that another worker runs. Raises as ``ask`` does."""
        wire = await self._connect(worker_id)
        try:
            await wire.send(request)
            await wire.receive(Following)
        except WireError as exc:
            wire.close()
            raise _lost() from exc
        except BaseException:
            wire.close()
            raise
        return RemoteReader(wire, request.stream_id)

    async def _connect(self, worker_id: str) -> Wire:
        found = await self._shared.find_worker(worker_id)
        if found is None:
            raise PeerGone(worker_id)
        # Also if its lease has run out: all do at once when the store's clock is set forward, and
        # what a living worker has must not be given up, and generated again.
        address = found.address
        try:
            async with asyncio.timeout(CONNECT_S):
                if address.startswith(_UNIX):
                    streams = await asyncio.open_unix_connection(address.removeprefix(_UNIX))
                else:
                    host, _, port = address.rpartition(":")
                    streams = await asyncio.open_connection(host, int(port))
        except TimeoutError as exc:
            raise _silent(worker_id, found) from exc
        except OSError as exc:
            if found.is_leased:
                logger.warning("the worker at %s does not answer: %s", address, exc)
            raise PeerGone(worker_id) from exc
        wire = Wire(*streams)
        try:
            await introduce(wire, self._secret)
        except (WireError, TimeoutError) as exc:
            wire.close()
            raise _silent(worker_id, found) from exc
        except BaseException:
            wire.close()
            raise
        return wire

    # -- answering

    async def run(self) -> None:
        """Listen, and keep the address registered in the store, until cancelled."""
        async with self._listening() as address:
            try:
                while True:
                    try:
                        await self._shared.register_worker(self.worker_id, address, LEASE)
                    except StoreUnavailable as error:
                        self._outage.failed("Other workers do not find this one: %s", error)
                    else:
                        self._outage.succeeded("Other workers find this one again")
                    await asyncio.sleep(LEASE.total_seconds() / 3)
            finally:
                with contextlib.suppress(StoreUnavailable):
                    await self._shared.forget_worker(self.worker_id)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[str]:
        folder, lock = None, -1
        if self._host is None:
            temporary = Path(tempfile.gettempdir())
            await asyncio.to_thread(sweep, temporary)
            folder, lock = own_folder(temporary)
            path = folder / _SOCKET
            server = await asyncio.start_unix_server(self._serve, path, start_serving=False)
            address = f"{_UNIX}{path}"
        else:
            server = await asyncio.start_server(self._serve, self._host, 0, start_serving=False)
            address = f"{self._host}:{server.sockets[0].getsockname()[1]}"
        try:
            # Inside of the ``try``: a cancellation during the call must close the socket.
            await server.start_serving()
            yield address
        finally:
            server.close()
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        wire = Wire(reader, writer)
        try:
            await greet(wire, self._secret)
            await self._answer(wire, await wire.receive_any())
        except (WireError, TimeoutError) as exc:
            logger.debug("a peer's connection ended: %s", exc)
        except asyncio.CancelledError:
            pass  # The server is closed. asyncio would log this.
        finally:
            self._connections.discard(task)
            wire.close()

    async def _answer(self, wire: Wire, request: object) -> None:
        try:
            if isinstance(request, Follow):
                assert self.follow_here is not None
                reader = await self.follow_here(request)
            else:
                handler = self._handlers.get(type(request))
                if handler is None:
                    raise WireError(f"{type(request).__name__} is no request")
                await wire.send(Value(await handler(request)))
                return
        except WireError:
            raise
        except Exception as exc:  # It is the other side's to tell its client.
            await wire.send(Failed.of(to_api_error(exc)))
            return
        try:
            await self._relay(wire, reader)
        finally:
            reader.close()

    async def _relay(self, wire: Wire, reader: Followed) -> None:
        """Send the reader's items to the other side until either side ends."""
        sending = asyncio.create_task(self._send_items(wire, reader))
        receiving = asyncio.create_task(self._receive_commands(wire, reader))
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _send_items(self, wire: Wire, reader: Followed) -> None:
        await wire.send(Following())
        try:
            async for items in reader:
                await wire.send(Items(list(items)))
        except ApiError as exc:
            await wire.send(Failed.of(exc))
        else:
            await wire.send(Ended())

    async def _receive_commands(self, wire: Wire, reader: Followed) -> None:
        while True:
            match await wire.receive_any():
                case Beat():
                    await reader.beat()
                case Stop():
                    reader.stop()
                case other:
                    raise WireError(f"{type(other).__name__} from a follower")


def own_folder(parent: Path) -> tuple[Path, int]:
    """A new folder that only its owner can read, and a descriptor of it: ``sweep`` keeps the folder
    until that is closed."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _locked(folder)
        # ``sweep`` may have had it first, for which it was nobody's.
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)


def sweep(parent: Path) -> int:
    """Remove the folders that killed workers left in ``parent``, and return how many there were."""
    num_removed = 0
    for left in parent.glob(f"{_PREFIX}*"):
        lock = _locked(left)
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
            num_removed += 1
    return num_removed


def _locked(folder: Path) -> int | None:
    """A descriptor of the folder, which it locks; None if that is another's or gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


class RemoteReader:
    """Yields a stream's items that another worker sends. ``close`` it in a ``finally``."""

    def __init__(self, wire: Wire, stream_id: str) -> None:
        self.stream_id = stream_id
        self._wire = wire

    def __aiter__(self) -> RemoteReader:
        return self

    async def __anext__(self) -> Sequence[bytes]:
        try:
            message = await self._wire.receive_any()
        except WireError as exc:
            raise _lost() from exc
        match message:
            case Items(items=items):
                return items
            case Failed():
                raise message.error()
            case Ended():
                raise StopAsyncIteration
        raise _lost()

    def divert(self, take: Callable[[bytes, float], bool]) -> None:
        """Does nothing: the callbacks are in another process."""

    async def beat(self) -> None:
        """Have a heartbeat sent to all readers, to be called after a long silence."""
        with contextlib.suppress(WireError):
            await self._wire.send(Beat())

    def stop(self) -> None:
        """End the stream's work because the client asked for it."""
        self._wire.post(Stop())

    def close(self) -> None:
        """Stop reading. The stream continues. Idempotent."""
        self._wire.close()


def _silent(worker_id: str, found: WorkerAddress) -> Exception:
    """What it means that a worker does not answer: with a lease, it may only be busy."""
    return _lost() if found.is_leased else PeerGone(worker_id)


def _lost() -> Unavailable:
    return Unavailable(
        "The worker that has this does not answer; try again.", code="worker_lost", retry_after_s=1
    )
