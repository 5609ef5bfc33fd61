"""One WebSocket's reader, writer and work: whoever ends first, all of it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.websockets import WebSocket

from gateway import context
from gateway.concurrency.fair_starts import FairStarts
from gateway.config import ServerConfig
from gateway.errors import ApiError, InvalidApiKey, Overloaded
from gateway.schemas.ws import Auth
from gateway.sockets import session as socket_session
from gateway.sockets.session import Close, Shared, SocketSession
from tenants.authenticator import Authenticator
from tenants.errors import StoreUnavailable
from tests.gateway.serving import until
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import PEPPER, make_key

Message = dict[str, Any]


class Peer:
    """The server's side of a socket: what the client sends, and what reaches it."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.gone = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.inbox.put_nowait({"type": "websocket.connect"})

    async def receive(self) -> Message:
        return await self.inbox.get()

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if self.gone:
            raise OSError("broken pipe")
        self.sent.append(dict(message))

    def say(self, text: str) -> None:
        self.inbox.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        self.inbox.put_nowait({"type": "websocket.disconnect", "code": 1001})

    @property
    def frames(self) -> list[str]:
        return [frame["text"] for frame in self.sent if frame["type"] == "websocket.send"]

    @property
    def closed(self) -> tuple[int, str] | None:
        closes = [frame for frame in self.sent if frame["type"] == "websocket.close"]
        if not closes:
            return None
        assert self.sent[-1] is closes[0], "nothing comes after the close"
        return closes[0]["code"], closes[0]["reason"]


class EchoSession(SocketSession):
    """A message is work: ``echo`` answers, ``wait`` does when ``go`` is set; ``quit`` is none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.go = asyncio.Event()
        self.num_cancelled = 0

    async def _read(self) -> None:
        await self._admitted("chat")
        while True:
            text = await self._receive()
            if text == "quit":
                raise Close(4000, "as you wish")
            if text == "break":
                raise RuntimeError("a bug")
            self._begin_task(self._work(text), name=text)

    async def _work(self, text: str) -> None:
        try:
            if text == "wait":
                await self.go.wait()
            await self._outbox.put(text, f"did {text}".encode())
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise

    def _error_frame(self, error: ApiError) -> bytes:
        return f"error {error.code}".encode()


class Site:
    """A session and its client."""

    def __init__(self, store: MemoryStore, api_key: str | None, **server: Any) -> None:
        self.peer = Peer()
        scope: dict[str, Any] = {"type": "websocket", "path": "/", "headers": []}
        self.context = context.attach(scope, self.peer.send)
        self.socket = WebSocket(scope, self.peer.receive, self.peer.send)
        shared = Shared(ServerConfig(**server), Authenticator(store, PEPPER), FairStarts())
        self.session = EchoSession(self.socket, api_key, shared)

    async def run(self) -> None:
        await self.socket.accept()
        self.peer.sent.clear()
        async with asyncio.timeout(30):
            await self.session.run()


async def with_key(**server: Any) -> Site:
    store = MemoryStore()
    text, _ = await make_key(store)
    return Site(store, text, **server)


async def played(
    site: Site, story: Callable[[], Awaitable[None]]
) -> tuple[list[str], tuple[int, str] | None]:
    """Run the session while ``story`` happens to it; its frames and its close. Nothing stays."""
    before = asyncio.all_tasks()
    running = asyncio.create_task(site.run())
    await until(lambda: site.session.principal is not None or running.done())
    await story()
    await running
    assert asyncio.all_tasks() == before
    return site.peer.frames, site.peer.closed


async def _working(site: Site, *texts: str) -> None:
    for text in texts:
        site.peer.say(text)
    await until(lambda: site.peer.inbox.empty())
    await asyncio.sleep(0)


# -- the client ends it


@pytest.mark.asyncio
async def test_a_client_that_leaves_takes_its_work_with_it() -> None:
    site = await with_key()

    async def story() -> None:
        await _working(site, "echo", "wait", "wait")
        await until(lambda: site.peer.frames)
        site.peer.leave()

    assert await played(site, story) == (["did echo"], None)
    assert site.session.num_cancelled == 2


@pytest.mark.asyncio
async def test_a_broken_line_is_a_client_that_left() -> None:
    site = await with_key()

    async def story() -> None:
        site.peer.gone = True
        await _working(site, "wait", "echo")

    assert await played(site, story) == ([], None)
    assert site.session.num_cancelled == 1


@pytest.mark.asyncio
async def test_what_was_said_before_a_close_arrives_before_it() -> None:
    site = await with_key()

    async def story() -> None:
        await _working(site, "echo", "quit")

    assert await played(site, story) == (["did echo"], (4000, "as you wish"))


@pytest.mark.asyncio
async def test_a_reader_that_takes_nothing_holds_up_no_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_session, "FLUSH_S", 0.05)
    site = await with_key()

    async def story() -> None:
        site.peer.reads.clear()
        await _working(site, "echo", "quit")
        await asyncio.sleep(0.15)
        assert not site.peer.sent
        site.peer.reads.set()  # the server has given up flushing; now it closes

    _, closed = await played(site, story)
    assert closed == (4000, "as you wish")


@pytest.mark.asyncio
async def test_only_text_is_spoken() -> None:
    site = await with_key()

    async def story() -> None:
        site.peer.inbox.put_nowait({"type": "websocket.receive", "bytes": b"hello"})

    assert await played(site, story) == ([], (1003, "messages are text"))


@pytest.mark.asyncio
async def test_a_bug_is_not_taken_for_an_end() -> None:
    """Whoever serves the socket hears of it; the work ends all the same."""
    site = await with_key()

    async def story() -> None:
        await _working(site, "wait", "break")

    with pytest.raises(RuntimeError, match="a bug"):
        await played(site, story)
    assert site.session.num_cancelled == 1


@pytest.mark.asyncio
async def test_a_client_that_is_gone_when_it_is_told_to_go() -> None:
    site = await with_key()

    async def story() -> None:
        site.peer.gone = True
        site.session.drain()

    assert await played(site, story) == ([], None)


@pytest.mark.asyncio
async def test_a_line_that_breaks_in_the_last_frame_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_session, "FLUSH_S", 25.0)
    site = await with_key()

    async def story() -> None:
        site.peer.reads.clear()
        await _working(site, "echo", "quit")
        await until(lambda: any(task.get_name() == "ws flush" for task in asyncio.all_tasks()))
        site.peer.gone = True
        site.peer.reads.set()

    begun = time.monotonic()
    assert await played(site, story) == ([], None)
    assert time.monotonic() - begun < socket_session.FLUSH_S


# -- who it is


def _auth(api_key: str) -> str:
    return msgspec.json.encode(Auth(api_key=api_key)).decode()


@pytest.mark.asyncio
async def test_the_first_message_may_hold_the_key() -> None:
    store = MemoryStore()
    text, principal = await make_key(store)
    site = Site(store, None)
    site.peer.say(_auth(text))

    async def story() -> None:
        assert site.context.principal == principal
        await _working(site, "echo", "quit")

    assert (await played(site, story))[0] == ["did echo"]


@pytest.mark.asyncio
@pytest.mark.parametrize("first", ["{", "{}", '{"type": "chat"}', '{"type":"auth","api_key":"x"}'])
async def test_without_a_good_key_nothing_is_begun(first: str) -> None:
    site = Site(MemoryStore(), None)
    site.peer.say(first)
    site.peer.say("echo")
    await site.run()
    assert site.peer.frames == ["error invalid_api_key"]
    assert site.peer.closed == (4401, "invalid_api_key")
    assert site.session.principal is None


@pytest.mark.asyncio
async def test_silence_is_not_waited_for_long() -> None:
    site = Site(MemoryStore(), None, ws_auth_timeout_s=0.05)
    await site.run()
    assert site.peer.closed == (4401, "no authentication in time")


class AwayStore(MemoryStore):
    async def find_key(self, public_id: str) -> Any:
        raise StoreUnavailable("away")


@pytest.mark.asyncio
async def test_a_key_that_cannot_be_checked_is_not_called_wrong() -> None:
    store = AwayStore()
    text, _ = await make_key(store)
    site = Site(store, text)
    await site.run()
    assert site.peer.closed is not None
    code, _ = site.peer.closed
    assert code not in (1011, 4401)
    assert site.peer.frames != ["error invalid_api_key"]


# -- the server ends it


@pytest.mark.asyncio
async def test_an_idle_session_goes_at_once_with_the_server() -> None:
    site = await with_key()

    async def story() -> None:
        site.session.drain()

    assert await played(site, story) == ([], (1012, "the server is shutting down"))


@pytest.mark.asyncio
async def test_a_busy_one_when_its_last_work_has_ended() -> None:
    site = await with_key()

    async def story() -> None:
        await _working(site, "wait", "wait")
        site.session.drain()
        await asyncio.sleep(0.02)
        assert site.peer.closed is None
        site.session.go.set()

    frames, closed = await played(site, story)
    assert frames == ["did wait", "did wait"]
    assert closed == (1012, "the server is shutting down")
    assert not site.session.num_cancelled


@pytest.mark.asyncio
async def test_a_refused_key_is_told_after_the_last_words_of_its_work() -> None:
    site = await with_key()

    async def story() -> None:
        await _working(site, "wait")
        asyncio.get_running_loop().call_later(0.02, site.session.go.set)
        site.session.refuse(InvalidApiKey("revoked"))

    assert await played(site, story) == (
        ["did wait", "error invalid_api_key"],
        (4401, "invalid_api_key"),
    )


@pytest.mark.asyncio
async def test_work_of_a_refused_key_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_session, "REFUSED_S", 0.02)
    site = await with_key()

    async def story() -> None:
        await _working(site, "wait")
        site.session.refuse(InvalidApiKey("revoked"))

    assert (await played(site, story))[0] == ["error invalid_api_key"]
    assert site.session.num_cancelled == 1


@pytest.mark.asyncio
async def test_a_cancelled_session_leaves_nothing_running() -> None:
    site = await with_key()
    before = asyncio.all_tasks()
    running = asyncio.create_task(site.run())
    await until(lambda: site.session.principal is not None)
    await _working(site, "wait")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before
    assert site.session.num_cancelled == 1


# -- what holds whatever happens

EVENTS = ("echo", "wait", "go", "leave", "break line", "drain", "refuse", "quit", "a moment")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=8))
def test_any_story_ends_with_nothing_left_and_at_most_one_close(events: list[str]) -> None:
    async def run() -> None:
        site = await with_key()
        before = asyncio.all_tasks()
        running = asyncio.create_task(site.run())
        await until(lambda: site.session.principal is not None)
        for event in [*events, "leave"]:
            match event:
                case "echo" | "wait" | "quit":
                    site.peer.say(event)
                case "go":
                    site.session.go.set()
                case "leave":
                    site.peer.leave()
                case "break line":
                    site.peer.gone = True
                case "drain":
                    site.session.drain()
                case "refuse":
                    site.session.refuse(Overloaded("no", retry_after_s=1))
                case "a moment":
                    await asyncio.sleep(0.002)
        await running
        assert asyncio.all_tasks() == before
        assert len(site.peer.frames) <= events.count("echo") + events.count("wait") + 1
        if site.peer.closed is not None:
            assert site.peer.closed[0] in {4000, 1012, Overloaded.close_code}

    asyncio.run(run())
