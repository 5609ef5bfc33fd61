"""Responses over a WebSocket at ``/v1/responses``: what a client may say.

OpenAI's WebSocket mode of the Responses API, with one addition (``response.cancel``). Every message
is one text frame with one JSON object that has a ``type``. Of these, Open Responses has the
messages without ``stream_id``: a client that never sends one gets its responses one after the
other, and no ``stream_id`` in what is sent.

Handshake
    As for ``/v1/chat``: the ``Authorization`` header, ``?ticket=`` of ``POST /v1/ws-tickets``, the
    subprotocols ``sluice.v1, sluice.api-key.KEY``, or ``{"type": "auth", "api_key": "..."}`` as the
    first message. A foreign ``Origin`` and a bad key are refused with real HTTP answers.

Client to server
    ``{"type": "response.create", "input": "Hi", "stream_id": "a", ...}``
        Fields as in ``POST /v1/responses``, without ``background``; ``stream`` is implied.
        ``previous_response_id`` may name a stored response, or one of the last ones of this
        connection, which need not be stored. ``"generate": false`` keeps the input only, to be
        continued, and counts as a request where these are limited.
        A summary made by ``POST /v1/responses/compact`` begins a new chain: its ``output`` is the
        ``input``, without ``previous_response_id``.
        ``stream_id`` names a lane (1 to 256 characters of ``A-Z a-z 0-9 _ . : -``): responses of
        one lane come one after the other, lanes run at the same time. Without it they share one.
    ``{"type": "response.cancel", "response_id": "resp_..."}``
        Ends a response of this connection, which then ends with ``response.incomplete``, for the
        reason ``cancelled``. One that has ended is left as it is: the two messages crossed.

Server to client
    The events of a streamed response, each one frame, with ``stream_id`` where the client gave one.
    ``{"type": "error", "status": 400, "error": {"type", "code", "message", "param", "headers"},
    "stream_id": "a"}``
        A message was refused. ``status`` is what HTTP would have answered; ``headers`` holds the
        ``x-ratelimit-*`` and ``retry-after`` it would have sent, and is left out where there are
        none. The connection goes on. If the message was to continue a response of its lane that is
        not stored, this can be continued no longer.

Limits
    ``server.ws_max_turns`` responses running or waiting (``websocket_in_flight_limit_reached``), 32
    named lanes (``websocket_stream_limit_reached``), and
    ``server.ws_max_connection_s`` (60 minutes), after which an ``error``
    with ``websocket_connection_limit_reached`` is sent, nothing more is begun, and the socket
    closes with 1001 when the last response has ended. Close codes are those of ``/v1/chat``.
"""

from __future__ import annotations

import msgspec

from gateway.schemas.response_answers import ResponseEvent
from gateway.schemas.responses import ResponseFields


class Create(
    ResponseFields, frozen=True, kw_only=True, tag="response.create", forbid_unknown_fields=True
):
    stream_id: str | None = None
    generate: bool | None = None
    stream: bool | None = None
    background: bool | None = None


class Cancel(
    msgspec.Struct, frozen=True, kw_only=True, tag="response.cancel", forbid_unknown_fields=True
):
    response_id: str


ClientMessage = Create | Cancel


class SocketErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class SocketError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """A message was refused, or the connection comes to its end."""

    status: int
    error: SocketErrorObject
    stream_id: str | msgspec.UnsetType = msgspec.UNSET


ServerMessage = ResponseEvent | SocketError
