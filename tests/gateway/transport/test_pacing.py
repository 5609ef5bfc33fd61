"""However many frames, chunks or requests one read brings, they hold the loop for a moment."""

from __future__ import annotations

import asyncio
import logging
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport import pacing
from gateway.transport.frame_cuts import MAX_FRAMES, FrameCuts
from gateway.transport.pacing import BURST_S, WORKER_BURST_S, Pace, ReceiveBuffer
from gateway.transport.protocol import BoundedHttpProtocol
from tests.gateway.raw_http import RawClient, exchange
from tests.gateway.serving import Gateway, served_double, until
from tests.gateway.sockets.test_broken_frames import BINARY, PING, TEXT, frame

PONG = 10
PIECE = 100
COST_S = 0.0009


class Transport(asyncio.Transport):
    """Notes whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.is_closed = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_closed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Parser:
    """Takes ``COST_S`` for each piece."""

    def __init__(self, clock: Clock) -> None:
        self.transport: asyncio.Transport = Transport()
        self.parsed = b""
        self.wants_input = True
        self._clock = clock

    @property
    def reads(self) -> bool:
        assert isinstance(self.transport, Transport)
        return self.transport.reads

    def piece_end(self, data: bytes, start: int) -> int:
        return start + PIECE

    def parse(self, data: bytes) -> None:
        assert 0 < len(data) <= PIECE
        self._clock.now += COST_S
        self.parsed += data


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    return clock


@pytest.mark.asyncio
async def test_backlogs_get_a_quarter_of_the_time_in_turns(clock: Clock) -> None:
    pace, loop = Pace(), asyncio.get_running_loop()
    parsers = [Parser(clock) for _ in range(24)]
    data = bytes(range(256)) * 10
    for parser in parsers:
        began = clock.now
        ReceiveBuffer(parser, pace).receive(data)
        assert clock.now - began <= BURST_S + COST_S
        assert not parser.reads
    began, parsed = loop.time(), clock.now
    async with asyncio.timeout(60):
        await until(lambda: all(parser.reads for parser in parsers))
    assert all(parser.parsed == data for parser in parsers)
    assert clock.now - parsed <= (loop.time() - began) / 3 + 2 * BURST_S


@pytest.mark.asyncio
async def test_many_connections_at_once_share_a_moment_and_a_newcomer_goes_before_them(
    clock: Clock,
) -> None:
    pace = Pace()
    parsers = [Parser(clock) for _ in range(500)]
    began = clock.now
    for parser in parsers:
        ReceiveBuffer(parser, pace).receive(bytes(20 * PIECE))
    assert clock.now - began <= WORKER_BURST_S + BURST_S + COST_S
    async with asyncio.timeout(60):
        await until(lambda: all(parser.parsed for parser in parsers))
    newcomer, before = Parser(clock), sum(len(parser.parsed) for parser in parsers)
    ReceiveBuffer(newcomer, pace).receive(b"hello")
    async with asyncio.timeout(60):
        await until(lambda: newcomer.parsed == b"hello")
    assert sum(len(parser.parsed) for parser in parsers) - before < len(parsers) // 10 * PIECE
    assert sum(len(parser.parsed) for parser in parsers) < len(parsers) * 20 * PIECE


@pytest.mark.asyncio
async def test_a_parser_that_fails_ends_its_connection_and_no_other(clock: Clock) -> None:
    class Failing(Parser):
        def parse(self, data: bytes) -> None:
            super().parse(data)
            if len(self.parsed) > 3 * PIECE:
                raise AssertionError("a bug")

    class Aborted(Transport):
        def abort(self) -> None:
            self.is_closed = True

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    pace, failing, other = Pace(), Failing(clock), Parser(clock)
    failing.transport = Aborted()
    for parser in (failing, other):
        ReceiveBuffer(parser, pace).receive(bytes(8 * PIECE))
    await until(lambda: other.parsed == bytes(8 * PIECE))
    assert failing.transport.is_closing()
    assert len(failing.parsed) == 4 * PIECE
    assert [str(context["exception"]) for context in told] == ["a bug"]


@pytest.mark.asyncio
async def test_what_costs_little_is_parsed_as_it_comes(clock: Clock) -> None:
    parser = Parser(clock)
    buffer = ReceiveBuffer(parser, Pace())
    for number in range(50):
        buffer.receive(b"%d," % number)
        assert parser.parsed.endswith(b"%d," % number)
        assert parser.reads
        clock.now += 0.1


@pytest.mark.asyncio
async def test_a_parser_that_wants_nothing_is_waited_for(clock: Clock) -> None:
    parser = Parser(clock)
    buffer = ReceiveBuffer(parser, Pace())
    parser.wants_input = False
    buffer.receive(b"a" * 150)
    buffer.receive(b"b" * 10)
    await asyncio.sleep(0.01)
    assert not parser.parsed
    assert not parser.reads
    parser.wants_input = True
    buffer.resume()
    async with asyncio.timeout(60):
        await until(lambda: parser.reads)
    assert parser.parsed == b"a" * 150 + b"b" * 10


@pytest.mark.asyncio
async def test_nothing_is_parsed_after_the_end(clock: Clock) -> None:
    parser = Parser(clock)
    buffer = ReceiveBuffer(parser, Pace())
    buffer.receive(b"x" * 1000)
    parsed = parser.parsed
    assert isinstance(parser.transport, Transport)
    parser.transport.is_closed = True
    buffer.clear()
    await asyncio.sleep(0.05)
    assert parser.parsed == parsed


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 125, 126, 300, 65536]), st.booleans()), max_size=80),
    st.data(),
)
def test_pieces_end_where_frames_do(frames: list[tuple[int, bool]], data: st.DataObject) -> None:
    ends, sent = [0], b""
    for size, is_masked in frames:
        if size < 126:
            length = bytes([size])
        elif size < 65536:
            length = b"\x7e" + size.to_bytes(2, "big")
        else:
            length = b"\x7f" + size.to_bytes(8, "big")
        mask = bytes([length[0] | 0x80 * is_masked])
        sent += b"\x82" + mask + length[1:] + b"mask" * is_masked + b"p" * size
        ends.append(len(sent))
    cuts, passed = FrameCuts(), 0
    while passed < len(sent):
        received = sent[passed : passed + data.draw(st.sampled_from([1, 2, 3, 7, 1000, 10**6]))]
        start = 0
        while start < len(received):
            num_before = cuts.num_frames
            end = cuts.cut(received, start)
            assert end > start
            assert cuts.num_frames - num_before <= MAX_FRAMES
            assert end == len(received) or passed + end in ends
            start = end
        passed += len(received)
    assert cuts.num_frames == len(frames)


UPGRADE = (
    b"GET /v1/chat HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: c2l4dGVlbiBieXRlcy4uLg==\r\n\r\n"
)


@pytest.mark.asyncio
@pytest.mark.parametrize("flood", [frame(PONG, b""), frame(PING, b""), frame(0, b"", fin=0)])
async def test_too_many_frames_close_the_socket_with_a_code(flood: bytes, model_dir: Path) -> None:
    async with served_double(model_dir) as (gateway, _):
        client = await RawClient.connect(gateway)
        client.send(UPGRADE)
        assert (await client.head()).status == 101
        if flood == frame(0, b"", fin=0):
            client.send(frame(BINARY, b"", fin=0))  # which they go on with
        client.send(flood * (1500 // len(flood)))  # More would be unread, and reset the connection.
        received = await client.reader.read()
        assert struct.pack(">H", 1008) + b"no authentication" in received
        await client.close()


@pytest.mark.asyncio
async def test_frames_before_the_answer_to_the_handshake_harm_nobody(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        client = await RawClient.connect(gateway)
        client.send(UPGRADE)
        await asyncio.sleep(0)
        client.send(b"GET / HTTP/1.1" * 100)
        await client.reader.read(100)
        await client.close()
    client = await RawClient.connect(gateway)
    client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 400)  # for which it needs turns
    for _ in range(400):
        assert (await client.answer()).status == 200
    await client.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.asyncio
async def test_text_before_authentication_is_refused_with_its_first_message(
    gateway: Gateway,
) -> None:
    client = await RawClient.connect(gateway)
    client.send(UPGRADE)
    assert (await client.head()).status == 101
    client.send(frame(TEXT, b"") * 150)
    received = await client.reader.read()
    assert struct.pack(">H", 4401) in received or struct.pack(">H", 1008) in received
    await client.close()


@pytest.mark.asyncio
async def test_pipelined_requests_are_parsed_one_at_a_time(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would all be started one after the other, whatever else there is to do."""
    pieces: list[bytes] = []
    parse = BoundedHttpProtocol.parse

    def noted(self: BoundedHttpProtocol, data: bytes) -> None:
        pieces.append(data)
        parse(self, data)

    monkeypatch.setattr(BoundedHttpProtocol, "parse", noted)
    client = await RawClient.connect(gateway)
    body = b"\r\n\r\n" * 600
    post = b"POST /livez HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 20 + post + post)
    statuses = [(await client.answer()).status for _ in range(22)]
    await client.close()
    assert statuses == [200] * 20 + [405] * 2
    assert max(piece.count(b"HTTP/1.1") for piece in pieces) == 1
    assert len(pieces) <= 26


@pytest.mark.asyncio
async def test_pipelined_requests_wait_and_are_all_answered(gateway: Gateway) -> None:
    client = await RawClient.connect(gateway)
    client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 400)
    for _ in range(400):
        assert (await client.answer()).status == 200
    await client.close()


@pytest.mark.asyncio
async def test_bodies_whose_end_is_not_clear_are_refused_with_an_answer(gateway: Gateway) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {gateway.api_key}\r\n".encode()
    for rest, status in (
        (b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        (b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
        (b"transfer-encoding: chunked\r\n\r\n1;" + b"a" * 200_000, 400),
        (b"transfer-encoding: chunked\r\n\r\n" + b"1;aaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 9000, 400),
        (b"authorization: Bearer x\r\n\r\n", 400),
    ):
        answer = await exchange(gateway, head + rest)
        assert answer.status == status, rest[:60]
        assert answer.headers.get("connection") == (None if b"Bearer x" in rest else "close")
        assert answer.error["message"]


@pytest.mark.asyncio
async def test_one_byte_chunks_are_no_extensions(gateway: Gateway) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += (
        f"authorization: Bearer {gateway.api_key}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    )
    body = b'{"model":1}'.ljust(30_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    answer = await exchange(gateway, head + chunks + b"0\r\n\r\n")
    assert answer.status == 400
    assert answer.error["param"] is not None
