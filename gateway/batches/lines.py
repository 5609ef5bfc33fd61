"""Runs a line of a batch as a request of its tenant that came over no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive

from gateway import context
from gateway.answers.refusals import refusal
from gateway.context import Deferred
from gateway.errors import ApiError, InvalidRequestError, to_api_error
from gateway.schemas.operation import Operation
from gateway.transport.body_shape import JsonCounts, cut
from gateway.transport.extensions import DISCONNECT, Disconnect
from tenants.access import require_scope
from tenants.authenticator import Authenticator
from tenants.batch_queue import Line
from tenants.types import UsageEvent

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
"""Those of OpenAI's batches; the route table says which of them there are."""
STOPPED = 499
"""The status of a line that was stopped before it was answered."""
_RETRY_S = 5.0
_ATTENDED = ("stream", "background", "resumable")
"""Fields that only make sense if somebody reads."""


class LineBody(msgspec.Struct, frozen=True):
    """A line of the input file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Unattended(msgspec.Struct, frozen=True):
    stream: Any = None
    background: Any = None
    resumable: Any = None


class Answer(msgspec.Struct, frozen=True):
    """What a line was answered."""

    status: int
    body: bytes
    retry_after_s: float | None
    """After which the line is to be tried again; None: this is its answer."""
    event: UsageEvent | None
    """What it used; None if it did not reach the engine."""


_line_decoder = msgspec.json.Decoder(LineBody)
_unattended_decoder = msgspec.json.Decoder(_Unattended)


def decode_line(data: bytes) -> LineBody:
    """Raises ``InvalidRequestError``."""
    try:
        line = _line_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(
            f"This line is not a JSON object with custom_id, method, url and body: {error}",
            code="invalid_json_line",
        ) from None
    if not 1 <= len(line.custom_id) <= 512 or "\0" in line.custom_id:
        raise InvalidRequestError("Must have from 1 to 512 characters.", param="custom_id")
    return line


def check_target(line: LineBody, endpoint: str) -> None:
    """Raises ``InvalidRequestError`` for a line that asks for something else than its batch."""
    if line.method != "POST":
        raise InvalidRequestError("Must be POST.", param="method", code="invalid_method")
    if line.url != endpoint:
        raise InvalidRequestError(
            f"Must be the batch's endpoint, {endpoint}.", param="url", code="mismatched_endpoint"
        )


class LineRun:
    """One attempt at a line."""

    def __init__(self, app: ASGIApp, operation: Operation, line: Line) -> None:
        """app: the innermost, behind all middleware."""
        self._app = app
        self._operation = operation
        self._line = line
        self._disconnect = Disconnect()
        self._deferred = Deferred()
        self.why: tuple[str, str] | None = None
        self._status = 0
        self._headers: Mapping[bytes, bytes] = {}
        self._body = bytearray()

    def stop(self, why: tuple[str, str] | None = None) -> None:
        """Let it end soon, with what was generated until then. why: the code and the message of its
        result; None: it runs again."""
        self.why = self.why or why
        self._disconnect.leave()

    async def answer(self, text: bytes, authenticator: Authenticator) -> Answer:
        """Run it. text: the line in the input file."""
        deferring = context.deferred.set(self._deferred)
        try:
            await self._run(text, authenticator)
        finally:
            context.deferred.reset(deferring)
        event = None if self._deferred.event is None else await self._deferred.event
        return Answer(self._status or STOPPED, bytes(self._body), self._retry_after_s(), event)

    async def _run(self, text: bytes, authenticator: Authenticator) -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": self._line.endpoint,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "path_params": {},
            "extensions": {DISCONNECT: self._disconnect},
        }
        known = context.attach(scope, self._send)
        known.request_id = self._line.request_id
        known.found(self._operation)
        known.notes["batch"] = self._line.batch_id
        known.notes.is_written = True  # The generation writes a line of its own.
        noting = context.notes.set(known.notes)
        try:
            principal = await authenticator.check(self._line.public_id)
            if self._operation.scope is not None:
                require_scope(principal.key, self._operation.scope)
            known.principal = principal
            body = await self._checked(text)
            await self._app(scope, _receiving(body), self._send)
        except Exception as exc:
            if not self._disconnect.has_left and not self._status:
                await refusal(scope, to_api_error(exc))(scope, _nothing, self._send)
        finally:
            context.notes.reset(noting)
            context.detach(scope)

    async def _checked(self, text: bytes) -> bytes:
        """The request's body. Raises ``ApiError`` for what only makes sense to a reader, and for
        bodies that would hold up the event loop."""
        counts = JsonCounts()
        for piece in cut(text):
            counts.feed(piece)
            await asyncio.sleep(0)
        body = bytes(decode_line(text).body)
        try:
            given = _unattended_decoder.decode(body)
        except msgspec.DecodeError:
            return body  # The route says what is wrong.
        for name in _ATTENDED:
            if getattr(given, name):
                raise InvalidRequestError("Not in a batch, whose answers are whole.", param=name)
        return body

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message.get("headers", ()))
        else:
            self._body += message.get("body", b"")

    def _retry_after_s(self) -> float | None:
        """Refusals by a rate, and failures of the server, are no answers of a line: it runs again.
        A budget that is used up for the month is one."""
        if self._status not in (429, 503):
            return None
        if self._status == 429 and self._headers.get(b"x-should-retry") == b"false":
            return None
        return float(self._headers.get(b"retry-after", _RETRY_S))


def _receiving(body: bytes) -> Receive:
    pending = [body]

    async def receive() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await asyncio.Event().wait()  # Who listens for the client's leaving has `Disconnect`.
        raise AssertionError

    return receive


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def result_of(line: Line, answer: Answer) -> bytes:
    """The line of the output file, or of the error file."""
    return _encoded(
        line.request_id.hex,
        line.custom_id,
        {
            "status_code": answer.status,
            "request_id": str(line.request_id),
            "body": msgspec.Raw(answer.body),
        },
        None,
    )


def error_result(name: str, custom_id: str | None, error: Mapping[str, Any]) -> bytes:
    """That of a line which was not answered. name: unique in its file."""
    return _encoded(name, custom_id, None, error)


def error_of(error: ApiError, number: int) -> dict[str, Any]:
    """As in the ``errors`` of a batch. number: the line's, from 1."""
    return {"code": error.code, "message": error.message, "param": error.param, "line": number}


def _encoded(name: str, custom_id: str | None, response: Any, error: Any) -> bytes:
    document = {
        "id": f"batch_req_{name}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(document) + b"\n"
