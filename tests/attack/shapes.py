"""Requests, handshakes and frames that no proper client sends, and what each must be answered.

Each is plain bytes, so that no library mends it on its way. ``HTTP`` and ``SOCKETS`` are the
tables; to add a shape, add a line.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE_S = 30.0
"""Within which each shape is answered or its connection closed, also on a busy machine."""
NUM_AT_ONCE = 16
QUIET_S = 0.3
"""After the last answer that is expected: for one that must not come."""
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
NORMAL, PROTOCOL_ERROR, UNACCEPTABLE, BAD_DATA = 1000, 1002, 1003, 1007
TOO_MANY, TOO_BIG, UNAUTHENTICATED = 1008, 1009, 4401


@dataclass(frozen=True)
class Target:
    """Where the bytes go, and a key that is good there."""

    host: str
    port: int
    key: str


# -- HTTP


@dataclass(frozen=True)
class HttpShape:
    name: str
    request: Callable[[str], bytes]
    """Made from a good key."""
    statuses: tuple[int, ...]
    """Of all answers on the connection, in their order; none if it is closed without one."""
    in_pieces: bool = False
    """Whether the bytes come one by one."""


async def statuses_of(shape: HttpShape, target: Target) -> tuple[int, ...]:
    """What the shape is answered. Raises ``TimeoutError`` if the connection stays open in silence
    before as many answers have come as it must have."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    data, got = shape.request(target.key), b""
    try:
        for piece in [data[i : i + 1] for i in range(len(data))] if shape.in_pieces else [data]:
            writer.write(piece)
            if shape.in_pieces:
                await asyncio.sleep(0)
        while True:
            has_all = len(_STATUS.findall(got)) >= len(shape.statuses) > 0
            try:
                async with asyncio.timeout(QUIET_S if has_all else PATIENCE_S):
                    more = await reader.read(65536)
            except TimeoutError:
                if has_all:
                    break
                raise
            except ConnectionResetError:  # closed with bytes of ours unread
                break
            if not more:
                break
            got += more
    finally:
        writer.transport.abort()
    return tuple(int(status) for status in _STATUS.findall(got))


async def all_statuses(target: Target) -> list[tuple[int, ...]]:
    """What each of ``HTTP`` is answered, in the table's order."""
    few = asyncio.Semaphore(NUM_AT_ONCE)

    async def statuses(shape: HttpShape) -> tuple[int, ...]:
        async with few:
            return await statuses_of(shape, target)

    return await asyncio.gather(*map(statuses, HTTP))


CHAT = b'{"model":"%s","messages":[{"role":"user","content":"hi"}],"max_tokens":1}'


def _get(path: bytes = b"/livez", *lines: bytes, host: bytes = b"host: x\r\n") -> bytes:
    return (
        b"GET " + path + b" HTTP/1.1\r\n" + host + b"".join(b"%b\r\n" % x for x in lines) + b"\r\n"
    )


def _plain(request: bytes) -> Callable[[str], bytes]:
    return lambda key: request


def _post(*lines: bytes, body: bytes = b"", length: bool = True) -> Callable[[str], bytes]:
    """A POST of a chat with a good key; ``lines`` are more headers."""

    def make(key: str) -> bytes:
        head = [
            b"POST /v1/chat/completions HTTP/1.1",
            b"host: x",
            b"content-type: application/json",
            b"authorization: Bearer " + key.encode(),
            *([b"content-length: %d" % len(body)] if length else []),
            *lines,
        ]
        return b"\r\n".join(head) + b"\r\n\r\n" + body

    return make


def _bare_post(*lines: bytes, body: bytes = b"") -> Callable[[str], bytes]:
    return _post(*lines, body=body, length=False)


def _chunked(body: bytes) -> Callable[[str], bytes]:
    return _bare_post(b"transfer-encoding: chunked", body=body)


_H = HttpShape
HTTP: tuple[HttpShape, ...] = (
    # request lines
    _H("blank lines first", _plain(b"\r\n\r\n" + _get()), (200,)),
    _H("bare line feeds", _plain(b"GET /livez HTTP/1.1\nhost: x\n\n"), (400,)),
    _H("nonsense", _plain(b"NONSENSE\r\n\r\n"), (400,)),
    _H("a version that does not exist", _plain(b"GET / HTTP/9.9\r\nhost: x\r\n\r\n"), (400,)),
    _H("TLS", _plain(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), (400,)),
    _H("HTTP/2 without an upgrade", _plain(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (400,)),
    _H("HTTP/1.0 without a host", _plain(b"GET /livez HTTP/1.0\r\n\r\n"), (200,)),
    _H("HTTP/0.9", _plain(b"GET /livez\r\n\r\n"), (400,)),
    _H("a method in small letters", _plain(b"get /livez HTTP/1.1\r\nhost: x\r\n\r\n"), (400,)),
    _H("a method of nobody", _plain(b"BREW /livez HTTP/1.1\r\nhost: x\r\n\r\n"), (400,)),
    _H("CONNECT", _plain(b"CONNECT a.example:443 HTTP/1.1\r\nhost: x\r\n\r\n"), (400,)),
    _H("TRACE", _plain(b"TRACE /livez HTTP/1.1\r\nhost: x\r\n\r\n"), (405,)),
    _H("OPTIONS of everything", _plain(b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n"), (401,)),
    _H("HEAD", _plain(b"HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\n"), (200,)),
    _H("another host's URL", _plain(_get(b"http://evil.example/livez")), (200,)),
    _H("a path with NUL", _plain(_get(b"/v1/models/%00")), (401,)),
    _H("a path that climbs", _plain(_get(b"/../../etc/passwd")), (401,)),
    _H("a path that climbs in disguise", _plain(_get(b"/%2e%2e/%2e%2e/etc/passwd")), (401,)),
    _H("a path of broken UTF-8", _plain(_get(b"/v1/models/%ff%fe")), (401,)),
    _H("a path of raw bytes", _plain(_get(b"/\xff\xfe")), (400,)),
    _H("a URL of 70 KB", _plain(_get(b"/" + b"a" * 70_000)), (431,)),
    # headers
    _H("no host", _plain(_get(host=b"")), (400,)),
    _H("two hosts", _plain(_get(b"/livez", b"host: y")), (400,)),
    _H("a header without a colon", _plain(_get(b"/livez", b"nonsense")), (400,)),
    _H("a space before the colon", _plain(_get(b"/livez", b"x-a : b")), (400,)),
    _H("a folded header", _plain(_get(b"/livez", b"x-a: b\r\n c")), (400,)),
    _H("NUL in a header", _plain(_get(b"/livez", b"x-a: b\x00c")), (400,)),
    _H("a lone CR in a header", _plain(_get(b"/livez", b"x-a: b\rc")), (400,)),
    _H("101 headers", _plain(_get(b"/livez", *[b"x-a: b"] * 101)), (431,)),
    _H("a header of 70 KB", _plain(_get(b"/livez", b"x-a: " + b"b" * 70_000)), (431,)),
    _H("headers that never end", _plain(b"GET /livez HTTP/1.1\r\nhost: x\r\nx-a: "), ()),
    _H("close and keep-alive", _plain(_get(b"/livez", b"connection: close, keep-alive")), (200,)),
    _H(
        "an upgrade to h2c",
        _plain(_get(b"/livez", b"connection: upgrade", b"upgrade: h2c")),
        (200,),
    ),
    _H("basic authentication", _plain(_get(b"/v1/models", b"authorization: Basic eDp5")), (401,)),
    _H(
        "a key of raw bytes", _plain(_get(b"/v1/models", b"authorization: Bearer \xff\xfe")), (401,)
    ),
    _H(
        "a key of 60 KB",
        _plain(_get(b"/v1/models", b"authorization: Bearer " + b"a" * 60_000)),
        (401,),
    ),
    _H(
        "two keys",
        _post(b"authorization: Bearer x", body=CHAT % b"x"),
        (400,),
    ),
    _H("an expectation", _post(b"expect: 100-continue", body=b"{}"), (100, 400)),
    _H("an expectation of nobody", _post(b"expect: 200-maybe", body=b"{}"), (400,)),
    # lengths
    _H("a negative length", _bare_post(b"content-length: -5", body=b"hello"), (400,)),
    _H("a length with a sign", _bare_post(b"content-length: +5", body=b"hello"), (400,)),
    _H("a length in hexadecimal", _bare_post(b"content-length: 0x5", body=b"hello"), (400,)),
    _H("a list of lengths", _bare_post(b"content-length: 5, 5", body=b"hello"), (400,)),
    _H(
        "two lengths",
        _bare_post(b"content-length: 5", b"content-length: 6", body=b"hello!"),
        (400,),
    ),
    _H("a length beyond 64 bits", _bare_post(b"content-length: 18446744073709551616"), (400,)),
    _H("a length of a petabyte", _bare_post(b"content-length: 1000000000000000"), (413,)),
    _H(
        "a length and chunks",
        _bare_post(b"content-length: 5", b"transfer-encoding: chunked", body=b"0\r\n\r\n"),
        (400,),
    ),
    _H(
        "chunks, then another coding",
        _bare_post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"),
        (400,),
    ),
    _H(
        "another coding, then chunks",
        _bare_post(b"transfer-encoding: gzip, chunked", body=b"0\r\n\r\n"),
        (501,),
    ),
    _H(
        "a coding that looks like chunks",
        _bare_post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"),
        (400,),
    ),
    _H(
        "chunks twice",
        _bare_post(*[b"transfer-encoding: chunked"] * 2, body=b"0\r\n\r\n"),
        (400,),
    ),
    _H("a chunk whose size is no number", _chunked(b"zz\r\nhello\r\n0\r\n\r\n"), (400,)),
    _H("a chunk of negative size", _chunked(b"-5\r\nhello\r\n0\r\n\r\n"), (400,)),
    _H("a chunk longer than its size", _chunked(b"3\r\nhello\r\n0\r\n\r\n"), (400,)),
    _H("a chunk size above 2^64", _chunked(b"f" * 17 + b"\r\nhello\r\n0\r\n\r\n"), (400,)),
    _H("a chunk size of 2^64 - 1", _chunked(b"f" * 16 + b"\r\nhello"), (408,)),
    _H("a chunk's extension of 100 KB", _chunked(b"1;" + b"e" * 100_000 + b"\r\n"), (400,)),
    _H("mostly chunk extensions", _chunked((b"1;" + b"e" * 1000 + b"\r\nx\r\n") * 100), (400,)),
    _H("trailers of 100 KB", _chunked(b"0\r\nx-a: " + b"b" * 100_000 + b"\r\n\r\n"), (400,)),
    _H("101 trailers", _chunked(b"0\r\n" + b"x-a: b\r\n" * 101 + b"\r\n"), (431,)),
    _H("chunks that never end", _chunked(b"3\r\nabc\r\n"), (408,)),
    _H("a body that never ends", _bare_post(b"content-length: 100", body=b"{"), (408,)),
    _H("a GET with a body", _plain(_get(b"/livez", b"content-length: 5") + b"hello"), (200,)),
    # several on one connection
    _H("a hundred at once", _plain(_get() * 100), (200,) * 100),
    _H("one behind a refused one", lambda key: _get(b"/v1/models") + _get(), (401, 200)),
    _H("one that hides in a body", _post(body=_get()), (400,)),
    _H("byte by byte", _plain(_get()), (200,), in_pieces=True),
    # bodies
    _H("no body", _post(), (400,)),
    _H("null", _post(body=b"null"), (400,)),
    _H("a list", _post(body=b"[]"), (400,)),
    _H("broken UTF-8", _post(body=b'{"model":"\xff"}'), (400,)),
    _H("UTF-16", _post(body='{"model":"x"}'.encode("utf-16")), (400,)),
    _H("NaN", _post(body=b'{"temperature":NaN}'), (400,)),
    _H("a number of 10,000 digits", _post(body=b'{"seed":' + b"9" * 10_000 + b"}"), (400,)),
    _H("half a surrogate", _post(body=b'{"model":"\\ud800"}'), (400,)),
    _H("arrays 100,000 deep", _post(body=b"[" * 100_000), (413,)),
    _H("arrays 5,000 deep", _post(body=b"[" * 5_000), (400,)),
    _H("gzip", _post(b"content-encoding: gzip", body=b"\x1f\x8b\x08\x00"), (415,)),
    _H(
        "an idempotency key of 10 KB",
        _post(b"idempotency-key: " + b"a" * 10_000, body=CHAT % b"x"),
        (400,),
    ),
)


# -- WebSocket


@dataclass(frozen=True)
class SocketShape:
    name: str
    frames: bytes
    """Sent after the handshake."""
    code: int | None
    """The close code, None if the connection ends without one."""
    says: bytes = b""
    """A part of what the server must have sent before."""
    then: bytes = b""
    """Sent when that has come."""
    handshake: tuple[bytes, ...] = ()
    """Header lines that replace those of a proper handshake, by their names."""
    status: int = 101
    path: bytes = b"/v1/chat"
    has_key: bool = True
    """Whether the handshake has a good key."""
    then_leaves: bool = False
    """Whether the client half-closes the connection after its frames."""


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    is_masked: bool = True,
    size: bytes | None = None,
) -> bytes:
    """As of RFC 6455, section 5.2. ``size``: the bytes that say how long it is, in place of those
    that are right."""
    flag = 0x80 if is_masked else 0
    if size is None:
        short = len(payload) < 126
        size = bytes([len(payload)]) if short else b"\x7e" + len(payload).to_bytes(2, "big")
    head = bytes([fin << 7 | rsv << 4 | opcode, size[0] | flag]) + size[1:]
    # The mask of zeros leaves the payload as it is.
    return head + (bytes(4) if is_masked else b"") + payload


def text(payload: bytes) -> bytes:
    return frame(1, payload)


BYE = frame(8, (1000).to_bytes(2, "big"))
_S = SocketShape
_PING = b'{"type":"ping","data":"still here"}'
_HERE = b"still here"


def _survives(name: str, payload: bytes, says: bytes) -> SocketShape:
    """A message after which the socket goes on, whatever is thought of it."""
    return _S(name, text(payload) + text(_PING), NORMAL, says=says, then=BYE)


SOCKETS: tuple[SocketShape, ...] = (
    # handshakes
    _S("no key", b"", None, handshake=(b"sec-websocket-key:",), status=400),
    _S("a key that is none", b"", None, handshake=(b"sec-websocket-key: x",), status=400),
    _S("another version", b"", None, handshake=(b"sec-websocket-version: 12",), status=400),
    _S(
        "a page of another origin",
        b"",
        None,
        handshake=(b"origin: https://evil.example",),
        status=403,
    ),
    _S("no such path", b"", None, path=b"/v1/chats", status=404),
    _S("a bad API key", b"", None, handshake=(b"authorization: Bearer nonsense",), status=401),
    _S("a bad ticket", b"", None, path=b"/v1/chat?ticket=nonsense", has_key=False, status=401),
    _S("two ways in", b"", None, path=b"/v1/chat?ticket=nonsense", status=400),
    _S(
        "a key that would be echoed",
        b"",
        None,
        has_key=False,
        handshake=(b"sec-websocket-protocol: sluice.api-key.x",),
        status=400,
    ),
    _S(
        "an extension",
        BYE,
        NORMAL,
        handshake=(b"sec-websocket-extensions: permessage-deflate; client_max_window_bits=99",),
    ),
    # frames
    _S("no mask", frame(1, _PING, is_masked=False), PROTOCOL_ERROR),
    _S("a reserved bit", frame(1, _PING, rsv=4), PROTOCOL_ERROR),
    _S("an unknown opcode", frame(3, b"x"), PROTOCOL_ERROR),
    _S("an unknown control opcode", frame(11), PROTOCOL_ERROR),
    _S("a long ping", frame(9, b"x" * 126), PROTOCOL_ERROR),
    _S("a ping in fragments", frame(9, b"x", fin=False), PROTOCOL_ERROR),
    _S("an end without a beginning", frame(0, b"x"), PROTOCOL_ERROR),
    _S("a beginning within a message", frame(1, b"x", fin=False) + frame(1, b"y"), PROTOCOL_ERROR),
    _S("a size above 2^63", frame(1, size=b"\x7f" + b"\xff" * 8), TOO_BIG),
    _S("a size above the limit", frame(1, size=b"\x7f" + (2**40).to_bytes(8, "big")), TOO_BIG),
    _S("fragments without end", frame(1, fin=False) + frame(0, fin=False) * 5000, TOO_MANY),
    _S("bytes", frame(2, b"x"), UNACCEPTABLE),
    _S("broken UTF-8", text(b"\xff\xfe"), BAD_DATA),
    _S("broken UTF-8 in fragments", frame(1, b"\xe2\x82", fin=False) + frame(0, b"\x28"), BAD_DATA),
    _S("a close of one byte", frame(8, b"x"), PROTOCOL_ERROR),
    _S("a close with a code of nobody", frame(8, (999).to_bytes(2, "big")), PROTOCOL_ERROR),
    _S(
        "a close with a code that is never sent",
        frame(8, (1005).to_bytes(2, "big")),
        PROTOCOL_ERROR,
    ),
    _S("a close with broken UTF-8", frame(8, b"\x03\xe8\xff"), BAD_DATA),
    _S("messages after a close", BYE + text(_PING) * 10, NORMAL),
    _S("half a frame, and gone", frame(1, b"x", size=b"\x7d"), None, then_leaves=True),
    _S("gone without a close", text(_PING), None, then_leaves=True),
    # messages
    _survives("no JSON", b"nonsense", b"invalid_json"),
    _survives("an empty message", b"", b"invalid_json"),
    _survives("a list", b"[]", b'"status":400'),
    _survives("an unknown type", b'{"type":"nonsense"}', b'"status":400'),
    _survives("a type that is no text", b'{"type":7}', b'"status":400'),
    _survives("5,000 deep", b'{"type":' + b"[" * 5000, b'"status":400'),
    _survives("another key", b'{"type":"auth","api_key":"x"}', b"authenticated already"),
    _survives("a turn without a name", b'{"type":"chat","messages":[]}', b'"status":400'),
    _survives(
        "a turn with a name of 65",
        b'{"type":"chat","id":"%s","messages":[]}' % (b"a" * 65),
        b'"status":400',
    ),
    _survives("a turn of nobody is cancelled", b'{"type":"cancel","id":"x"}', _HERE),
    _survives(
        "a turn is cancelled by its stream",
        b'{"type":"cancel","stream_id":"stream_x"}',
        b"Unknown parameter: stream_id; known are id.",
    ),
    _survives(
        "a place above 2^63",
        b'{"type":"resume","id":"x","stream_id":"stream_x","last_seq":9223372036854775808}',
        b'"param":"last_seq"',
    ),
    _survives(
        "a place that is a float",
        b'{"type":"resume","id":"x","stream_id":"stream_x","last_seq":1e30}',
        b'"param":"last_seq"',
    ),
    _survives(
        "a stream of nobody is resumed",
        b'{"type":"resume","id":"x","stream_id":"stream_x","last_seq":-1}',
        b'"status":404',
    ),
    _survives(
        "a place below the first",
        b'{"type":"resume","id":"x","stream_id":"stream_x","last_seq":-2}',
        b'"status":400',
    ),
    # before authentication
    _S(
        "no authentication first",
        text(_PING),
        UNAUTHENTICATED,
        has_key=False,
        says=b"invalid_api_key",
    ),
    _S(
        "authentication with a bad key",
        text(b'{"type":"auth","api_key":"x"}'),
        UNAUTHENTICATED,
        has_key=False,
        says=b"invalid_api_key",
    ),
    _S("bytes in place of a key", frame(2, b"x"), UNACCEPTABLE, has_key=False),
    _S(
        "a megabyte in place of a key",
        frame(1, b"x" * 2**20, size=b"\x7f" + (2**20).to_bytes(8, "big")),
        TOO_BIG,
        has_key=False,
    ),
    _S("nothing in place of a key", b"", UNAUTHENTICATED, has_key=False),
)


@dataclass(frozen=True)
class Heard:
    """What a socket was answered."""

    status: int
    code: int | None
    said: bytes


async def heard_by(shape: SocketShape, target: Target) -> Heard:
    """Raises ``TimeoutError`` if the connection stays open."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(_handshake(shape, target))
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            writer.write(shape.frames)
            if shape.then_leaves:
                writer.write_eof()
            said = await _until(reader, shape.says) if shape.then else b""
            if shape.then:
                writer.write(shape.then)
            said += await _until(reader, None)
    finally:
        writer.transport.abort()
    if status != 101:
        return Heard(status, None, said)
    code, said = _frames_in(said)
    return Heard(status, code, said)


async def _until(reader: asyncio.StreamReader, words: bytes | None) -> bytes:
    """What comes until these words have come; if None, until a close frame or the end."""
    said = b""
    try:
        while words not in said if words else _frames_in(said)[0] is None:
            if not (more := await reader.read(65536)):
                break
            said += more
    except ConnectionResetError:  # closed with bytes of ours unread
        pass
    return said


def _handshake(shape: SocketShape, target: Target) -> bytes:
    lines = {
        b"host": b"host: %s:%d" % (target.host.encode(), target.port),
        b"connection": b"connection: Upgrade\r\nupgrade: websocket",
        b"sec-websocket-version": b"sec-websocket-version: 13",
        b"sec-websocket-key": b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    }
    if shape.has_key:
        lines[b"authorization"] = b"authorization: Bearer " + target.key.encode()
    for line in shape.handshake:
        name, _, value = line.partition(b":")
        lines.pop(name, None)
        if value:
            lines[name] = line
    head = b"\r\n".join([b"GET %b HTTP/1.1" % shape.path, *lines.values()])
    return head + b"\r\n\r\n"


def _frames_in(data: bytes) -> tuple[int | None, bytes]:
    """The code of the close frame, and all other payloads one after the other."""
    code, said = None, b""
    while len(data) >= 2:
        opcode, size, at = data[0] & 15, data[1], 2
        if size >= 126:
            at = 4 if size == 126 else 10
            size = int.from_bytes(data[2:at], "big")
        payload, data = data[at : at + size], data[at + size :]
        if opcode == 8:
            code = int.from_bytes(payload[:2], "big")
        else:
            said += payload
    return code, said


async def all_heard(target: Target) -> list[Heard]:
    """What each of ``SOCKETS`` is answered, in the table's order."""
    few = asyncio.Semaphore(NUM_AT_ONCE)

    async def heard(shape: SocketShape) -> Heard:
        async with few:
            return await heard_by(shape, target)

    return await asyncio.gather(*map(heard, SOCKETS))
