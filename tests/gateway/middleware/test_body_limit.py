"""A body within the limit arrives as it was sent, however it is cut; any other is refused."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from gateway import context
from gateway.errors import ApiError, InvalidRequestError, PayloadTooLarge, RequestTimeout
from gateway.middleware import body_limit
from gateway.middleware.body_limit import BodyLimit
from gateway.transport.body_shape import MAX_CONTAINERS, PIECE_BYTES

MAX_BYTES = 20


class Client:
    """Sends pieces of a body, then leaves; counts what was taken from it."""

    def __init__(self, pieces: list[bytes], *, ends: bool = True) -> None:
        self._pieces = list(pieces)
        self._num_pieces = len(pieces)
        self._ends = ends

    @property
    def num_taken(self) -> int:
        return self._num_pieces - len(self._pieces)

    async def receive(self) -> Message:
        if self._pieces:
            body = self._pieces.pop(0)
            more = bool(self._pieces) or not self._ends
            return {"type": "http.request", "body": body, "more_body": more}
        if not self._ends:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}


class Staying(Client):
    """Listens for the answer once it has sent its body."""

    async def receive(self) -> Message:
        if self._pieces:
            return await super().receive()
        return await asyncio.Event().wait()  # type: ignore[return-value]


async def reader(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, then waits for the client to leave."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
    await send({"type": "read", "body": body})


def run(client: Client, headers: dict[str, str] | None = None, timeout_s: float = 5.0) -> bytes:
    """What the application read. Raises what it is refused with."""
    read: list[bytes] = []

    async def send(message: Message) -> None:
        read.append(message["body"])

    scope = {
        "type": "http",
        "headers": [
            (name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()
        ],
    }
    context.attach(scope, send)
    limit = BodyLimit(reader, max_bytes=MAX_BYTES, max_file_bytes=0, timeout_s=timeout_s)
    asyncio.run(limit(scope, client.receive, send))
    return read[0]


PIECES = st.lists(st.binary(max_size=9), min_size=1, max_size=8)


@given(PIECES)
def test_only_the_size_decides_and_not_the_pieces(pieces: list[bytes]) -> None:
    body, client = b"".join(pieces), Client(pieces)
    if len(body) <= MAX_BYTES:
        assert run(client) == body
        return
    with pytest.raises(PayloadTooLarge) as caught:
        run(client)
    assert caught.value.extra_headers["connection"] == "close"
    assert client.num_taken == len(pieces)  # many clients read no answer before they sent all


@given(PIECES, st.integers(0, 3 * MAX_BYTES))
def test_what_is_announced_counts_before_it_comes(pieces: list[bytes], announced: int) -> None:
    client = Client(pieces)
    headers = {"content-length": str(announced), "expect": "100-continue"}
    if announced > MAX_BYTES:
        with pytest.raises(PayloadTooLarge):
            run(client, headers)
        assert client.num_taken == 0  # it waits to be asked
    elif sum(map(len, pieces)) <= MAX_BYTES:
        assert run(client, headers) == b"".join(pieces)


@pytest.mark.parametrize("text", ["", "-1", "+5", "1_0", "²", "0x5", "5 5", "9" * 5000])
def test_a_length_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        run(Client([b"x"]), {"content-length": text})
    assert isinstance(caught.value, InvalidRequestError | PayloadTooLarge)


def test_what_is_announced_without_asking_is_taken_before_it_is_refused() -> None:
    client = Client([b"x" * 10] * 3)
    with pytest.raises(PayloadTooLarge):
        run(client, {"content-length": "30"})
    assert client.num_taken == 3


def test_what_is_refused_is_taken_up_to_its_end_and_not_waited_on() -> None:
    """Behind the body ``receive`` waits until the client leaves, who waits for the answer."""
    for pieces in ([b"x" * (MAX_BYTES + 1)], [b"x" * MAX_BYTES, b"x", b"x"]):
        client = Staying(pieces)
        began = time.monotonic()
        with pytest.raises(PayloadTooLarge):
            run(client)
        assert client.num_taken == len(pieces)
        assert time.monotonic() - began < body_limit.DRAIN_S / 2


def test_a_body_that_comes_slowly_arrives() -> None:
    class Slow(Client):
        async def receive(self) -> Message:
            await asyncio.sleep(0.002)
            return await super().receive()

    assert run(Slow([b"a", b"b", b"c"])) == b"abc"


def test_websockets_have_neither_a_size_nor_an_end() -> None:
    passed: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(receive)

    async def receive() -> Message:
        raise AssertionError

    limit = BodyLimit(app, max_bytes=0, max_file_bytes=0, timeout_s=0.0)
    scope = {"type": "websocket", "headers": [(b"content-length", b"5")]}
    asyncio.run(limit(scope, receive, receive))  # type: ignore[arg-type]
    assert passed == [receive]


def test_a_body_that_does_not_come_is_given_up() -> None:
    client = Client([b"some"], ends=False)
    with pytest.raises(RequestTimeout, match=r"0\.02 s"):
        run(client, timeout_s=0.02)


def test_who_goes_on_sending_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "DRAIN_BYTES", 1000)
    client = Client([b"x" * 100] * 50)
    with pytest.raises(PayloadTooLarge):
        run(client)
    assert client.num_taken == 11
    monkeypatch.setattr(body_limit, "DRAIN_S", 0.02)
    with pytest.raises(PayloadTooLarge):
        run(Client([b"x" * 100], ends=False))


def test_after_the_body_the_wait_is_without_end() -> None:
    """The application listens for the client's leaving as long as it answers."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"all"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.05)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    limit = BodyLimit(answer, max_bytes=MAX_BYTES, max_file_bytes=0, timeout_s=0.01)
    scope: Scope = {"type": "http", "headers": []}
    context.attach(scope, send)
    asyncio.run(limit(scope, Staying([b"all"]).receive, send))


def test_a_large_piece_is_counted_in_several_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = b'"%s"' % (b"x" * (10 * PIECE_BYTES))
    monkeypatch.setattr(f"{__name__}.MAX_BYTES", len(text))

    class Counting(Client):
        """Counts turns from the body on, until it is asked for what comes behind that."""

        turns = 0

        async def receive(self) -> Message:
            if self.num_taken:
                self._turn.cancel()
            else:
                self._count()
            return await super().receive()

        def _count(self) -> None:
            self.turns += 1
            self._turn = asyncio.get_running_loop().call_soon(self._count)

    client = Counting([text])
    assert run(client) == text
    assert 10 <= client.turns <= 13


def test_a_body_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"[%s]" % (b"[]," * MAX_CONTAINERS)
    monkeypatch.setattr(f"{__name__}.MAX_BYTES", len(text))
    pieces = [text[: len(text) // 2], text[len(text) // 2 :]]
    client = Client(pieces)
    with pytest.raises(PayloadTooLarge, match="arrays and objects") as caught:
        run(client)
    assert caught.value.extra_headers["connection"] == "close"
    assert client.num_taken == len(pieces)
