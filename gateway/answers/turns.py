"""Encodes the turns of the WebSocket ``/v1/chat``. No I/O.

As with the chunks of ``answers.chat``, events of text are joined from prepared parts.
"""

from __future__ import annotations

import msgspec
import orjson

from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.events import Event, Made, Text
from gateway.generation.token_logprobs import ChoiceLogprobs
from gateway.parsers.base import joined_pieces
from gateway.schemas.common import Compliance, Usage
from gateway.schemas.ws import Done, DoneReason, Started, TurnError

_encode = msgspec.json.Encoder().encode
_TEXT_EVENT = b'%b%d,"content":"%b"}'


class TurnEvents:
    """The ``Encoder`` of one turn. ``seq`` numbers its events from ``after_seq`` + 1."""

    __slots__ = ("_compliance", "_head", "_id", "_reason", "_seq", "_started")

    def __init__(self, turn_id: str, *, after_seq: int = -1) -> None:
        self._id = turn_id
        self._head = b'{"type":"delta","id":%b,"seq":' % orjson.dumps(turn_id)
        self._seq = after_seq
        self._started: Started | None = None
        self._reason: DoneReason = "cancelled"
        self._compliance: Compliance | None = None

    def begin(
        self,
        *,
        request_id: str,
        model: str,
        created: int,
        prompt_tokens: int,
        stream_id: str | None = None,
        ignored: tuple[str, ...] = (),
    ) -> None:
        """Set what ``opening`` says."""
        self._started = Started(
            id=self._id,
            seq=0,
            request_id=request_id,
            model=model,
            created=created,
            prompt_tokens=prompt_tokens,
            stream_id=msgspec.UNSET if stream_id is None else stream_id,
            ignored=ignored or msgspec.UNSET,
        )

    def opening(self) -> list[Event]:
        assert self._started is not None
        return [_event(msgspec.structs.replace(self._started, seq=self._next()))]

    def delta(self, delta: Delta) -> list[Event]:
        """An event with all of a delta but its end, for which there is ``closing``."""
        if delta.finish_reason is not None:
            self._reason = msgspec.convert(delta.finish_reason, DoneReason)
        self._compliance = delta.compliance
        if not (delta.content or delta.tool_calls or delta.reasoning or delta.logprobs):
            return []
        parts = [b"%b%d" % (self._head, self._next())]
        if delta.reasoning:
            parts += [b',"reasoning_content":', orjson.dumps(delta.reasoning)]
        if delta.content or not (delta.tool_calls or delta.reasoning):
            parts += [b',"content":', orjson.dumps(delta.content)]
        if delta.logprobs:
            parts += [b',"logprobs":', _encode(ChoiceLogprobs(delta.logprobs))]
        if delta.tool_calls:
            parts += [b',"tool_calls":', _encode(joined_pieces(delta.tool_calls))]
        return [Event("", b"".join(parts) + b"}")]

    def text_form(self, index: int) -> Made:
        return Made("", self._text, self._text_at)

    def _text(self, text: Text) -> bytes:
        self._seq = seq = self._seq + 1
        return _TEXT_EVENT % (self._head, seq, text)

    def _text_at(self, text: Text, seq: int) -> bytes:
        return _TEXT_EVENT % (self._head, seq, text)

    def closing(self, usage: Usage) -> list[Event]:
        compliance = msgspec.UNSET if self._compliance is None else self._compliance
        return [
            _event(
                Done(
                    id=self._id,
                    seq=self._next(),
                    finish_reason=self._reason,
                    usage=usage,
                    structured_outputs=compliance,
                )
            )
        ]

    def failure(self, error: ApiError) -> list[Event]:
        return [
            _event(
                TurnError(
                    id=self._id,
                    seq=self._next(),
                    status=error.status,
                    retryable=error.retryable,
                    error=error.object(),
                    headers=error.limit_headers() or msgspec.UNSET,
                )
            )
        ]

    def heartbeat(self) -> None:
        """WebSockets have their own."""

    def _next(self) -> int:
        self._seq += 1
        return self._seq


def _event(message: Started | Done | TurnError) -> Event:
    return Event("", _encode(message))
