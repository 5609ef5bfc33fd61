"""Writes the frames of a turn of ``/v1/chat``. No I/O.

As with the chunks of ``answers.chat``, frames of text are joined from prepared parts.
"""

from __future__ import annotations

import msgspec
import orjson

from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.text_events import Text
from gateway.generation.token_logprobs import ChoiceLogprobs
from gateway.parsers.base import joined_pieces
from gateway.schemas.common import Compliance, Usage
from gateway.schemas.ws import Done, DoneReason, Started, TurnError

_encode = msgspec.json.Encoder().encode
_TEXT_FRAME = b'%b%d,"content":"%b"}'


class TurnFrames:
    """Writes the frames of one WebSocket turn, as JSON in UTF-8. ``seq`` numbers them from
    ``after_seq`` + 1."""

    __slots__ = ("_head", "_id", "_seq")

    def __init__(self, turn_id: str, *, after_seq: int = -1) -> None:
        self._id = turn_id
        self._head = b'{"type":"delta","id":%b,"seq":' % orjson.dumps(turn_id)
        self._seq = after_seq

    def started(
        self,
        *,
        request_id: str,
        model: str,
        created: int,
        prompt_tokens: int,
        stream_id: str | None = None,
    ) -> bytes:
        return _encode(
            Started(
                id=self._id,
                seq=self._next(),
                request_id=request_id,
                model=model,
                created=created,
                prompt_tokens=prompt_tokens,
                stream_id=msgspec.UNSET if stream_id is None else stream_id,
            )
        )

    def delta(self, delta: Delta) -> bytes:
        """A frame with all of a delta but its end, for which there is ``done``."""
        parts = [b"%b%d" % (self._head, self._next())]
        if delta.reasoning:
            parts += [b',"reasoning_content":', orjson.dumps(delta.reasoning)]
        if delta.content or not (delta.tool_calls or delta.reasoning):
            parts += [b',"content":', orjson.dumps(delta.content)]
        if delta.logprobs:
            parts += [b',"logprobs":', _encode(ChoiceLogprobs(delta.logprobs))]
        if delta.tool_calls:
            parts += [b',"tool_calls":', _encode(joined_pieces(delta.tool_calls))]
        return b"".join(parts) + b"}"

    def text(self, text: Text) -> bytes:
        """The frame of a delta that is content alone."""
        self._seq = seq = self._seq + 1
        return _TEXT_FRAME % (self._head, seq, text)

    def text_at(self, text: Text, seq: int) -> bytes:
        """The frame with the number ``seq``, as ``text`` made it or will make it."""
        return _TEXT_FRAME % (self._head, seq, text)

    def done(
        self, finish_reason: DoneReason, usage: Usage, *, compliance: Compliance | None = None
    ) -> bytes:
        return _encode(
            Done(
                id=self._id,
                seq=self._next(),
                finish_reason=finish_reason,
                usage=usage,
                structured_outputs=msgspec.UNSET if compliance is None else compliance,
            )
        )

    def error(self, error: ApiError) -> bytes:
        return _encode(
            TurnError(
                id=self._id,
                seq=self._next(),
                status=error.status,
                retryable=error.retryable,
                error=error.object(),
                headers=error.limit_headers() or msgspec.UNSET,
            )
        )

    def _next(self) -> int:
        self._seq += 1
        return self._seq
