"""Writes deltas as bytes: chunks and answers of Chat Completions, and WebSocket frames. No I/O.

The chunks of a stream differ in a few characters only. So each is joined from a prepared head, the
encoded text and a prepared tail, which costs a fraction of encoding an object.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.text_events import Around, Text
from gateway.generation.token_logprobs import ChoiceLogprobs, TokenLogprob
from gateway.parsers.base import ToolCallDelta
from gateway.schemas.common import Compliance, Usage
from gateway.schemas.ws import Done, DoneReason, Started, TurnError

DONE = b"data: [DONE]\n\n"

_PADDED_BYTES = 64
_PADDING = b',"obfuscation":"%s"'

_encode = msgspec.json.Encoder().encode


class StreamEnds:
    """The last events of a stream, the same in Chat Completions and Completions."""

    _head: bytes
    """What a chunk begins with, up to its list of choices."""
    _has_usage: bool

    def closing(self, usage: Usage) -> bytes:
        """The events after the last delta, only after success: ``[DONE]`` tells the client that
        nothing is missing."""
        if not self._has_usage:
            return DONE
        return self._head + b'],"usage":' + _encode(usage) + b"}\n\n" + DONE

    def error(self, error: ApiError) -> bytes:
        """The last event of a failed stream. SDKs raise an exception for it."""
        return b"data: " + error.body() + b"\n\n"


class ChatChunks(StreamEnds):
    """Writes the server-sent events of one streamed chat completion: whole events, as bytes.

    First ``opening``, then any number of ``delta``, then ``closing``; ``error`` may replace the
    rest at any point. Choice 0 opens before choice 1: SDKs fail on any other order.
    """

    def __init__(
        self,
        *,
        completion_id: str,
        created: int,
        model: str,
        num_choices: int,
        has_usage: bool,
        service_tier: str | None = None,
        is_obfuscated: bool = False,
    ) -> None:
        self._has_usage = has_usage
        self._is_obfuscated = is_obfuscated
        self._num_choices = num_choices
        tier = b"" if service_tier is None else b'"service_tier":%s,' % orjson.dumps(service_tier)
        self._head = (
            b'data: {"id":%s,"object":"chat.completion.chunk","created":%d,"model":%s,%s'
            b'"system_fingerprint":null,"choices":['
            % (orjson.dumps(completion_id), created, orjson.dumps(model), tier)
        )
        self._tail = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"
        self._content_heads = [
            self._head + b'{"index":%d,"delta":{"content":' % index for index in range(num_choices)
        ]
        self._content_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self.heartbeat = self._content_heads[0] + b'""' + self._content_tail
        """A chunk without content. A comment would not do: some SDKs fail on comments."""

    def opening(self) -> bytes:
        return b"".join(
            self._choice(index, b'{"role":"assistant","content":""}')
            for index in range(self._num_choices)
        )

    def delta(self, delta: Delta) -> bytes:
        """One event, or several if text, calls and the end came together."""
        if self._is_plain(delta):
            return (
                self._content_heads[delta.index] + orjson.dumps(delta.content) + self._content_tail
            )
        events: list[bytes] = []
        if delta.reasoning:
            text = _encode({"reasoning_content": delta.reasoning})
            events.append(self._choice(delta.index, text))
        if delta.content or delta.logprobs:
            text = _encode({"content": delta.content})
            logprobs = _encode(ChoiceLogprobs(delta.logprobs)) if delta.logprobs else b"null"
            events.append(self._choice(delta.index, text, logprobs=logprobs))
        # One call in each chunk, as OpenAI sends them: older SDKs read only the first in a list.
        events += [
            self._choice(delta.index, _encode({"tool_calls": [piece]}))
            for piece in _merged(delta.tool_calls)
        ]
        if delta.finish_reason is not None:
            events.append(self._last(delta))
        return b"".join(map(obfuscated, events) if self._is_obfuscated else events)

    def around_text(self, index: int) -> Around | None:
        """What ``delta`` puts around a choice's content; None if it differs from chunk to chunk."""
        if self._is_obfuscated:
            return None
        return Around(self._content_heads[index] + b'"', b'"' + self._content_tail)

    def _is_plain(self, delta: Delta) -> bool:
        """Whether there is only content: the usual case, which is fast."""
        return (
            delta.finish_reason is None
            and not delta.tool_calls
            and not delta.reasoning
            and not delta.logprobs
            and not self._is_obfuscated
        )

    def _last(self, delta: Delta) -> bytes:
        extra = b""
        if delta.compliance is not None:
            extra = b',"structured_outputs":' + _encode(delta.compliance)
        return self._choice(delta.index, b"{}", orjson.dumps(delta.finish_reason) + extra)

    def _choice(
        self,
        index: int,
        delta: bytes,
        finish_reason: bytes = b"null",
        *,
        logprobs: bytes = b"null",
    ) -> bytes:
        return b'%s{"index":%d,"delta":%s,"logprobs":%s,"finish_reason":%s}%s' % (
            self._head,
            index,
            delta,
            logprobs,
            finish_reason,
            self._tail,
        )


def _merged(pieces: Sequence[ToolCallDelta]) -> list[ToolCallDelta]:
    """The pieces, with consecutive ones of the same call joined."""
    merged: list[ToolCallDelta] = []
    for piece in pieces:
        if not merged or merged[-1].index != piece.index:
            merged.append(piece)
            continue
        last = merged[-1].function
        text = (last.arguments or "") + (piece.function.arguments or "")
        function = msgspec.structs.replace(last, arguments=text)
        merged[-1] = msgspec.structs.replace(merged[-1], function=function)
    return merged


def obfuscated(event: bytes) -> bytes:
    """The chunk ``event``, padded to a multiple of ``_PADDED_BYTES``. Otherwise whoever observes an
    encrypted connection can infer text from the sizes (Whisper Leak, arXiv:2511.03675)."""
    size = -(len(event) + len(_PADDING % b"")) % _PADDED_BYTES
    noise = secrets.token_urlsafe(size)[:size].encode()
    return event.removesuffix(b"}\n\n") + _PADDING % noise + b"}\n\n"


class ChatCompletion:
    """Collects the deltas of a chat completion that is not streamed, and writes its body."""

    def __init__(
        self,
        *,
        completion_id: str,
        created: int,
        model: str,
        num_choices: int,
        metadata: dict[str, str] | None = None,
        service_tier: str | None = None,
    ) -> None:
        self._head: dict[str, Any] = {
            "id": completion_id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        if metadata is not None:
            self._head["metadata"] = metadata
        if service_tier is not None:
            self._head["service_tier"] = service_tier
        self._choices = [_CollectedChoice() for _ in range(num_choices)]

    def add(self, delta: Delta) -> None:
        self._choices[delta.index].add(delta)

    def body(self, usage: Usage) -> bytes:
        choices = [choice.object(index) for index, choice in enumerate(self._choices)]
        return _encode({**self._head, "choices": choices, "usage": usage})


class _CollectedChoice:
    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []
        self._reasoning: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish_reason: str | None = None
        self._compliance: Compliance | None = None

    def add(self, delta: Delta) -> None:
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        self._logprobs += delta.logprobs
        self._compliance = delta.compliance or self._compliance
        for piece in delta.tool_calls:
            if piece.index == len(self._calls):
                self._calls.append(
                    {"id": piece.id, "type": "function", "name": piece.function.name}
                )
                self._arguments.append([])
            if isinstance(piece.function.arguments, str):
                self._arguments[piece.index].append(piece.function.arguments)
        self._finish_reason = delta.finish_reason or self._finish_reason

    def object(self, index: int) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self._calls else None,
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": call["type"],
                    "function": {"name": call["name"], "arguments": "".join(arguments)},
                }
                for call, arguments in zip(self._calls, self._arguments, strict=True)
            ]
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": ChoiceLogprobs(self._logprobs) if self._logprobs else None,
            "finish_reason": self._finish_reason,
        }
        if self._compliance is not None:
            choice["structured_outputs"] = self._compliance
        return choice


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
            parts += [b',"tool_calls":', _encode(_merged(delta.tool_calls))]
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
