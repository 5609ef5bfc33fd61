"""The WebSocket chat protocol of ``/v1/chat``: what each side may say.

``GET /asyncapi.json`` has all messages as JSON schemas.

Every message is one text frame holding one JSON object with a ``type``. A *turn* is one question
with its answer; its ``id`` is the client's choice (1 to 64 characters of ``A-Z a-z 0-9 _ . : -``)
and names it in everything that follows. Several turns may run at once on one socket, up to
``max_turns`` of ``ready``; an id may be used again once its turn has ended.

Handshake
    A browser's ``Origin`` must be the server's own or a configured one, else the upgrade is refused
    with a real HTTP 403. A client that can set headers may send ``Authorization: Bearer KEY`` with
    the upgrade (a bad key is then a real HTTP 401) and is answered with ``ready`` at once. The same
    goes for ``?ticket=TICKET`` with a one-time ticket of ``POST /v1/ws-tickets`` (30 s), and for
    the subprotocols ``sluice.v1, sluice.api-key.KEY``, of which only the first is echoed.
    Everybody else sends ``auth`` as the first message, within ``ws_auth_timeout_s`` (10 s).

Client to server
    ``{"type": "auth", "api_key": "sk-slc-..."}``
        Answered by ``ready``, or by ``error`` and close 4401.
    ``{"type": "chat", "id": "t1", "messages": [{"role": "user", "content": "Hi"}], ...}``
        Starts a turn. Fields as in Chat Completions: all but ``stream``, ``stream_options``,
        ``n``, ``store`` and ``prediction``. ``model`` may be left out: then it is the one served.
        The server keeps no history: send all earlier messages with each turn.
        With ``"resumable": true`` the turn outlives its socket: ``started`` names its stream, and
        only ``cancel``, ``DELETE /v1/streams/{id}`` or ``resume_grace_s`` without a reader stop it.
    ``{"type": "resume", "id": "t1", "stream_id": "stream_...", "last_seq": 7}``
        Reads such a turn on, on any socket of the same tenant: the frames after ``last_seq`` (-1:
        all of them) follow exactly as they were or would have been sent. ``id`` must be the
        turn's own. Works until ``stream_retention_s`` after the turn's end.
    ``{"type": "cancel", "id": "t1"}``
        Stops the turn, which then ends with ``done`` and ``finish_reason: "cancelled"``. A turn
        that has ended or never was is not an error: the cancel crossed its ``done``.
    ``{"type": "ping"}``
        Answered by ``pong``; a ``data`` string is echoed. (The server also sends WebSocket pings.)

Server to client
    ``{"type": "ready", "models": ["demo"], "image_models": [], "max_model_len": 2048,
    "max_turns": 16, "max_message_bytes": 1048576}``
        The key is good; turns may begin. ``image_models`` are those that see images.
    ``{"type": "started", "id": "t1", "seq": 0, "request_id": "...", "model": "demo",
    "created": 1700000000, "prompt_tokens": 12, "stream_id": "stream_...", "ignored": []}``
        The turn is admitted. ``request_id`` names it in logs and in the ledger. Only resumable
        turns have a ``stream_id``; ``ignored`` lists the chat's fields that were taken and change
        nothing, if there are any.
    ``{"type": "delta", "id": "t1", "seq": 1, "content": "Hel"}``
        More text: append it. ``reasoning_content`` is more of what the model thinks before it
        answers; ``logprobs``, if asked for, are as in a Chat Completions chunk.
    ``{"type": "delta", "id": "t1", "seq": 2, "tool_calls": [{"index": 0, "id": "call_...",
    "type": "function", "function": {"name": "get_weather", "arguments": ""}}]}``
        A tool call, exactly as in a Chat Completions chunk: ``id``, ``type`` and ``name`` come
        once, fragments of ``arguments`` follow under the same ``index``.
    ``{"type": "done", "id": "t1", "seq": 9, "finish_reason": "stop", "usage": {...}}``
        The turn ended well. ``finish_reason`` is ``stop``, ``length``, ``tool_calls`` or
        ``cancelled``; ``usage`` is Chat Completions' usage object. ``structured_outputs`` is there
        where the format asked for could not be enforced: see ``schemas.common.Compliance``.
    ``{"type": "error", "id": "t1", "seq": 9, "status": 503, "retryable": true,
    "error": {"message": "...", "type": "...", "param": null, "code": "..."},
    "headers": {"retry-after": "2"}}``
        The turn ended badly, or was refused. ``status`` is what HTTP would have answered.
        ``headers`` holds the ``x-ratelimit-*`` and ``retry-after`` that HTTP would have sent; it
        is left out where there are none.
        With ``"id": null`` (and no ``seq``) it concerns no turn: a frame that is no JSON, an
        unknown type, an id already in use; running turns go on.
    ``{"type": "pong", "data": "..."}``

Order
    ``seq`` counts a turn's messages from 0 without gaps. ``started`` is the first one of an
    admitted turn (after ``resume`` the next one is ``last_seq`` + 1); exactly one ``done`` or
    ``error`` is the last one of every turn.

Close codes
    1000 the client's own close · 1001 or 1012 the server drains: reconnect (running turns got
    ``error`` or ``done`` first) · 1007 or 1003 not UTF-8 or not text · 1009 a message above
    ``max_message_bytes`` · 1013 overload: reconnect later, with a pause · 4401 no or bad
    authentication (never 1011: SDKs would reconnect) · 4403 the key may not chat. A client that
    takes no bytes for ``send_timeout_s`` is dropped without a code.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gateway.schemas.answers import ChoiceLogprobs, ToolCallPiece
from gateway.schemas.chat import ChatFields
from gateway.schemas.common import Compliance, ErrorObject, Usage


class Auth(msgspec.Struct, frozen=True, tag="auth", forbid_unknown_fields=True):
    api_key: str


class Chat(ChatFields, frozen=True, kw_only=True, tag="chat", forbid_unknown_fields=True):
    id: str
    model: str | None = None
    resumable: bool | None = None


MAX_SEQ = 2**53 - 1
"""The largest number of a message: larger ones are not exact in every client's JSON."""


class Resume(msgspec.Struct, frozen=True, tag="resume", forbid_unknown_fields=True):
    id: str
    stream_id: str
    last_seq: Annotated[int, msgspec.Meta(ge=-1, le=MAX_SEQ - 1)]


class Cancel(msgspec.Struct, frozen=True, tag="cancel", forbid_unknown_fields=True):
    id: str


class Ping(msgspec.Struct, frozen=True, tag="ping", forbid_unknown_fields=True):
    data: str | None = None


ClientMessage = Auth | Chat | Resume | Cancel | Ping

DoneReason = Literal["stop", "length", "tool_calls", "cancelled"]


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    models: list[str]
    image_models: list[str] = []
    """Those of ``models`` that see images."""
    max_model_len: int | None
    """None while the engine is starting or away."""
    max_turns: int
    max_message_bytes: int


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    id: str
    seq: int
    request_id: str
    model: str
    created: int
    prompt_tokens: int
    stream_id: str | msgspec.UnsetType = msgspec.UNSET
    ignored: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Fields of the chat that were taken and change nothing."""


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """Written by ``answers.turns``, which splices it."""

    id: str
    seq: int
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: ChoiceLogprobs | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallPiece] | msgspec.UnsetType = msgspec.UNSET


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    id: str
    seq: int
    finish_reason: DoneReason
    usage: Usage
    structured_outputs: Compliance | msgspec.UnsetType = msgspec.UNSET
    """As in a choice of Chat Completions; left out where everything was enforced."""


class TurnError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """Ends a turn."""

    id: str
    seq: int
    status: int
    retryable: bool
    error: ErrorObject
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """``retry-after``, ``x-ratelimit-*``, as the HTTP answer would have them; left out if none."""


class SocketError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """Concerns no turn."""

    id: None = None
    status: int
    retryable: bool
    error: ErrorObject
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """``retry-after``, ``x-ratelimit-*``, as the HTTP answer would have them; left out if none."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    data: str | None = None


ServerMessage = Ready | Started | Delta | Done | TurnError | SocketError | Pong
