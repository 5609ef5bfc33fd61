"""Requests between gateway workers, for what only one of them has.

The log of a running stream, an unused ticket and a running response are in the memory of one
worker. Their ids name that worker (``routed_ids``), and each worker registers in the store where it
listens. So a worker that is asked for another's can pass the request on. This costs nothing while
streams flow, and one row for each worker. A log in the database would cost rows for each stream and
writes for each chunk, even if no client ever comes back.

Workers of one host talk over Unix sockets in private folders; ``server.peer_host`` makes it TCP for
those of several hosts. ``wire`` has what they say, encrypted in either case.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from gateway.errors import ApiError, Unavailable, to_api_error
from gateway.peers.wire import (
    WINDOW,
    Beat,
    Ended,
    Failed,
    Follow,
    Following,
    Items,
    KeyMismatch,
    Keys,
    Left,
    Message,
    More,
    Probe,
    Request,
    Stop,
    Value,
    Wire,
    WireError,
    decode,
    encode,
    failure,
    prepare,
)
from tenants.errors import StoreUnavailable
from tenants.outage import OutageLog
from tenants.shared import SharedState, WorkerAddress

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=30)
CONNECT_S = 5.0
PROBE_S = 1.0
"""How often a worker looks whether a follower to whom it has nothing to say is still there."""
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
        self, shared: SharedState, *, worker_id: str, keys: Keys, host: str | None
    ) -> None:
        """host: the address to listen on for workers of other hosts; None for this host only."""
        self.worker_id = worker_id
        self.follow_here: Callable[[Follow], Awaitable[Followed]] | None = None
        """Reads a stream of this worker; set by ``Streams``."""
        self._shared = shared
        self._keys = keys
        self._host = host
        self._handlers: dict[type, Callable[[Any], Awaitable[bytes]]] = {}
        self._callers: dict[bytes, Caller] = {}
        self._outage = OutageLog(logger)
        self._strangers = OutageLog(logger)

    def answer(self, kind: type, handler: Callable[[Any], Awaitable[bytes]]) -> None:
        """Answer requests of ``kind`` with ``handler``; what it raises is raised at the other
        side."""
        self._handlers[kind] = handler

    # -- asking

    async def ask(self, worker_id: str, request: Request) -> bytes:
        """Another worker's answer. Raises ``PeerGone``, and the ``ApiError`` that it raised."""
        wire = await self._connect(worker_id)
        try:
            wire.post(request)
            return (await wire.receive(Value)).data
        except WireError as exc:
            raise _lost() from exc
        finally:
            wire.post(Left())
            wire.close()

    async def follow(self, worker_id: str, request: Follow) -> RemoteReader:
        """Read a stream that another worker runs. Raises as ``ask`` does."""
        reader = RemoteReader(await self._connect(worker_id), request.stream_id)
        try:
            await reader.begin(request)
        except BaseException:
            reader.close()
            raise
        return reader

    async def _connect(self, worker_id: str) -> Wire:
        found = await self._shared.find_worker(worker_id)
        if found is None:
            raise PeerGone(worker_id)
        # Also if its lease has run out: all do at once when the store's clock is set forward, and
        # what a living worker has must not be given up, and generated again.
        try:
            wire = Wire(found.address, self._keys)
        except WireError as exc:
            raise PeerGone(worker_id) from exc
        try:
            async with asyncio.timeout(CONNECT_S):
                await wire.opened()
        except BaseException as exc:
            wire.close()
            match exc:
                case KeyMismatch():
                    self._strangers.failed(
                        "The worker at %s has another key than this one: give all hosts the same "
                        "tenants.secrets_file",
                        found.address,
                    )
                    raise _silent(worker_id, found) from exc
                case WireError():
                    if found.is_leased:
                        logger.warning("the worker at %s does not answer: %s", found.address, exc)
                    raise PeerGone(worker_id) from exc
                case TimeoutError():
                    raise _silent(worker_id, found) from exc
            raise
        self._strangers.succeeded("The worker at %s has the same key as this one", found.address)
        return wire

    # -- answering

    async def run(self) -> None:
        """Listen, and keep the address registered in the store, until cancelled."""
        async with self._listening() as (address, receiving):
            try:
                while True:
                    try:
                        await self._shared.register_worker(self.worker_id, address, LEASE)
                    except StoreUnavailable as error:
                        self._outage.failed("Other workers do not find this one: %s", error)
                    else:
                        self._outage.succeeded("Other workers find this one again")
                    await asyncio.wait((receiving,), timeout=LEASE.total_seconds() / 3)
                    if receiving.done():
                        receiving.result()
            finally:
                with contextlib.suppress(StoreUnavailable):
                    await self._shared.forget_worker(self.worker_id)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
        async with contextlib.AsyncExitStack() as stack:
            if self._host is None:
                temporary = Path(tempfile.gettempdir())
                await asyncio.to_thread(sweep, temporary)
                folder, lock = own_folder(temporary)
                stack.callback(os.close, lock)
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                address = f"ipc://{folder / _SOCKET}"
            else:
                address = f"tcp://{await _numeric(self._host)}:*"
            context = zmq.asyncio.Context()
            stack.callback(context.destroy, 0)
            authenticator = AsyncioAuthenticator(context)
            authenticator.start()
            stack.callback(authenticator.stop)
            authenticator.configure_curve_callback(credentials_provider=self)
            router = context.socket(zmq.ROUTER)
            prepare(router, self._keys)
            router.curve_server = True
            router.router_mandatory = True  # A caller that has left is an error, not silence.
            router.bind(address)
            if self._host is not None:
                endpoint = bytes(router.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
                port = endpoint.rpartition(":")[2]
                address = f"tcp://{self._host}:{port}"
            stack.push_async_callback(self._dismiss)
            receiving = asyncio.create_task(self._receive(router), name="peers")
            stack.callback(receiving.cancel)
            yield address, receiving

    def callback(self, domain: str, key: bytes) -> bool:
        """For ZeroMQ's authenticator: whether who connects has the site's key."""
        return hmac.compare_digest(key, self._keys.public)

    async def _receive(self, router: zmq.asyncio.Socket) -> None:
        while True:
            identity, *rest = await router.recv_multipart()
            caller = self._callers.get(identity)
            try:
                message = decode(b"".join(rest))
            except WireError as exc:
                logger.debug("a peer's connection ended: %s", exc)
                message = Left()
            if caller is not None:
                caller.take(message)
            elif isinstance(message, Request):
                self._callers[identity] = caller = Caller(router, identity)
                caller.task = asyncio.create_task(self._serve(caller, message))

    async def _serve(self, caller: Caller, request: Request) -> None:
        try:
            await self._answer(caller, request)
        except WireError as exc:
            logger.debug("a peer's connection ended: %s", exc)
        finally:
            del self._callers[caller.identity]

    async def _dismiss(self) -> None:
        tasks = [caller.task for caller in self._callers.values() if caller.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, caller: Caller, request: Request) -> None:
        try:
            if not isinstance(request, Follow):
                handler = self._handlers.get(type(request))
                if handler is None:
                    raise WireError(f"nobody answers {type(request).__name__}")
                caller.send(Value(await handler(request)))
                return
            assert self.follow_here is not None
            reader = await self.follow_here(request)
        except WireError as exc:
            caller.send(Ended())
            raise exc from None
        except Exception as exc:  # It is the other side's to tell its client.
            caller.send(Failed.of(to_api_error(exc)))
            return
        try:
            await self._relay(caller, reader)
        finally:
            reader.close()

    async def _relay(self, caller: Caller, reader: Followed) -> None:
        """Send the reader's items to the other side until either side ends."""
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._send_items(caller, reader),
                self._obey(caller, reader),
                _probe(caller),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_items(self, caller: Caller, reader: Followed) -> None:
        caller.send(Following())
        try:
            async for items in reader:
                await caller.window.acquire()
                caller.send(Items(list(items)))
        except ApiError as exc:
            caller.send(Failed.of(exc))
        else:
            caller.send(Ended())

    async def _obey(self, caller: Caller, reader: Followed) -> None:
        """Do what a follower says, until it leaves."""
        while True:
            match await caller.said.get():
                case Beat():
                    await reader.beat()
                case Stop():
                    reader.stop()
                case More():
                    caller.window.release()
                case _:
                    return


class Caller:
    """Another worker that has asked this one for something, until it is answered."""

    def __init__(self, router: zmq.asyncio.Socket, identity: bytes) -> None:
        self.identity = identity
        self.task: asyncio.Task[None] | None = None
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        """Messages that came after its request. There are few, since most are answered first."""
        self.window = asyncio.Semaphore(WINDOW)
        self._router = router

    def take(self, message: Message) -> None:
        self.said.put_nowait(message)

    def send(self, message: Message) -> None:
        """Raises ``WireError`` if the caller has gone."""
        parts = [self.identity, encode(message)]
        error = failure(self._router.send_multipart(parts, zmq.DONTWAIT))
        if error is not None:
            raise WireError(str(error)) from error


async def _probe(caller: Caller) -> None:
    """Return when the caller has gone."""
    with contextlib.suppress(WireError):
        while True:
            await asyncio.sleep(PROBE_S)
            caller.send(Probe())


async def _numeric(host: str) -> str:
    """The address of a host, which ZeroMQ does not look up for those who listen."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    address = str(found[0][4][0])
    return f"[{address}]" if ":" in address else address


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
        self._is_closed = False

    async def begin(self, request: Follow) -> None:
        """Raises ``Unavailable``, and the ``ApiError`` that the other worker raised."""
        self._wire.post(request)
        try:
            await self._wire.receive(Following)
        except WireError as exc:
            raise _lost() from exc

    def __aiter__(self) -> RemoteReader:
        return self

    async def __anext__(self) -> Sequence[bytes]:
        try:
            message = await self._wire.receive_any()
        except WireError as exc:
            raise _lost() from exc
        match message:
            case Items(items=items):
                self._wire.post(More())
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
        self._say(Beat())

    def stop(self) -> None:
        """End the stream's work because the client asked for it."""
        self._say(Stop())

    def close(self) -> None:
        """Stop reading. The stream continues. Idempotent."""
        self._say(Left())
        self._is_closed = True
        self._wire.close()

    def _say(self, message: Beat | Stop | Left) -> None:
        if not self._is_closed:
            self._wire.post(message)


def _silent(worker_id: str, found: WorkerAddress) -> Exception:
    """The error for a worker that does not answer: while its lease runs, it may only be busy."""
    return _lost() if found.is_leased else PeerGone(worker_id)


def _lost() -> Unavailable:
    return Unavailable(
        "The worker that has this does not answer; try again.", code="worker_lost", retry_after_s=1
    )
