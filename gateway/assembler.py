"""From what the engine generated to what goes over the wire. Pure logic, no I/O.

A stream's chunks differ in a few characters only, so each is spliced from a prepared head, the
encoded text and a prepared tail; that costs a fraction of encoding an object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from gateway.errors import ApiError
from gateway.parsers.base import ToolCallDelta
from gateway.schemas.common import Usage
from gateway.schemas.ws import Done, DoneReason, Started, TurnError

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Delta(msgspec.Struct, gc=False):
    """What one choice gained since the last one."""

    index: int
    """Of the choice."""
    content: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    finish_reason: str | None = None
    """Set on the choice's last one."""


class ChatChunks:
    """The server-sent events of one streamed chat completion: whole events, as bytes.

    Order: ``opening``, any number of ``delta``, then ``closing``; or ``error`` in place of the
    rest. Choice 0 opens before choice 1: SDKs fail on any other order.
    """

    def __init__(
        self, *, completion_id: str, created: int, model: str, num_choices: int, has_usage: bool
    ) -> None:
        self._has_usage = has_usage
        self._num_choices = num_choices
        self._head = (
            b'data: {"id":%s,"object":"chat.completion.chunk","created":%d,"model":%s,'
            b'"system_fingerprint":null,"choices":['
            % (orjson.dumps(completion_id), created, orjson.dumps(model))
        )
        self._tail = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"
        self._content_heads = [
            self._head + b'{"index":%d,"delta":{"content":' % index for index in range(num_choices)
        ]
        self._content_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self.heartbeat = self._content_heads[0] + b'""' + self._content_tail
        """A chunk that adds nothing: SDKs choke on comments, never on this."""

    def opening(self) -> bytes:
        return b"".join(
            self._choice(index, b'{"role":"assistant","content":""}')
            for index in range(self._num_choices)
        )

    def delta(self, delta: Delta) -> bytes:
        """One event, or several when text, calls and the end came together."""
        if delta.finish_reason is None and not delta.tool_calls:
            return (
                self._content_heads[delta.index] + orjson.dumps(delta.content) + self._content_tail
            )
        events: list[bytes] = []
        if delta.content:
            events.append(self._choice(delta.index, _encode({"content": delta.content})))
        if delta.tool_calls:
            events.append(self._choice(delta.index, _encode({"tool_calls": delta.tool_calls})))
        if delta.finish_reason is not None:
            events.append(self._choice(delta.index, b"{}", orjson.dumps(delta.finish_reason)))
        return b"".join(events)

    def closing(self, usage: Usage) -> bytes:
        """Only after success: ``[DONE]`` tells the client that nothing is missing."""
        if not self._has_usage:
            return DONE
        return self._head + b'],"usage":' + _encode(usage) + b"}\n\n" + DONE

    def error(self, error: ApiError) -> bytes:
        """The last event of a failed stream: SDKs raise on it."""
        return b"data: " + error.body() + b"\n\n"

    def _choice(self, index: int, delta: bytes, finish_reason: bytes = b"null") -> bytes:
        return b'%s{"index":%d,"delta":%s,"logprobs":null,"finish_reason":%s}%s' % (
            self._head,
            index,
            delta,
            finish_reason,
            self._tail,
        )


class ChatCompletion:
    """Collects the deltas of a chat completion that is not streamed."""

    def __init__(
        self,
        *,
        completion_id: str,
        created: int,
        model: str,
        num_choices: int,
        metadata: dict[str, str] | None = None,
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
        self._finish_reason: str | None = None

    def add(self, delta: Delta) -> None:
        if delta.content:
            self._content.append(delta.content)
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
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": call["type"],
                    "function": {"name": call["name"], "arguments": "".join(arguments)},
                }
                for call, arguments in zip(self._calls, self._arguments, strict=True)
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish_reason,
        }


class TurnFrames:
    """The frames of one WebSocket turn, as text. ``seq`` counts them from ``after_seq`` + 1."""

    def __init__(self, turn_id: str, *, after_seq: int = -1) -> None:
        self._id = turn_id
        self._head = f'{{"type":"delta","id":{orjson.dumps(turn_id).decode()},"seq":'
        self._seq = after_seq

    def started(
        self,
        *,
        request_id: str,
        model: str,
        created: int,
        prompt_tokens: int,
        stream_id: str | None = None,
    ) -> str:
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
        ).decode()

    def delta(self, delta: Delta) -> str:
        """A frame of text, of calls, or of both; the end has its own frame, ``done``."""
        frame = f"{self._head}{self._next()}"
        if delta.content or not delta.tool_calls:
            frame += f',"content":{orjson.dumps(delta.content).decode()}'
        if delta.tool_calls:
            frame += f',"tool_calls":{_encode(delta.tool_calls).decode()}'
        return frame + "}"

    def done(self, finish_reason: DoneReason, usage: Usage) -> str:
        return _encode(
            Done(id=self._id, seq=self._next(), finish_reason=finish_reason, usage=usage)
        ).decode()

    def error(self, error: ApiError) -> str:
        return _encode(
            TurnError(
                id=self._id,
                seq=self._next(),
                status=error.status,
                retryable=error.retryable,
                error=error.object(),
                headers=error.limit_headers() or msgspec.UNSET,
            )
        ).decode()

    def _next(self) -> int:
        self._seq += 1
        return self._seq
