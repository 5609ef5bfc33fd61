"""Encodes the events and whole answers of Anthropic's Messages, and their errors. No I/O.

message_start
each block:  content_block_start, its deltas, content_block_stop
message_delta, message_stop
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import orjson

from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.events import Event, Made, Text
from gateway.parsers.base import ToolCallDelta, joined_pieces
from gateway.schemas.common import Compliance, Usage
from gateway.schemas.messages import NO_THREADS

_encode = msgspec.json.Encoder().encode

_STOP_REASONS = {"stop": "end_turn", "cancelled": "end_turn", "tool_calls": "tool_use"}
_DELTA = "content_block_delta"
_TAIL = b'"}}'


class MessageEncoder:
    """The ``Encoder`` of a message, whole or streamed. ``content`` has the blocks of a whole one
    that are complete."""

    def __init__(
        self,
        *,
        message_id: str,
        model: str,
        num_prompt_tokens: int,
        num_cached_tokens: Callable[[], int],
        room: int | None = None,
    ) -> None:
        """``num_cached_tokens``: how many of the prompt's are known to be cached by now. ``room``:
        how many tokens the answer can have, if that is less than the client allows."""
        self._id = message_id
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens = num_cached_tokens
        self._room = room
        self._content: list[dict[str, Any]] = []
        self._block: _Block | None = None
        self._num_blocks = 0
        self._finish_reason = "stop"
        self._stop: str | None = None
        self._compliance: Compliance | None = None

    # -- as events

    def opening(self) -> list[Event]:
        cached = min(self._num_cached_tokens(), self._num_prompt_tokens)
        message = self._message(None, _usage(self._num_prompt_tokens, cached))
        return [_event("message_start", message=message), self.heartbeat()]

    def delta(self, delta: Delta) -> list[Event]:
        events: list[Event] = []
        if delta.reasoning:
            events += self._add_text(_THINKING, delta.reasoning)
        if delta.content:
            events += self._add_text(_TEXT, delta.content)
        for piece in joined_pieces(delta.tool_calls):
            events += self._add_call(piece)
        if delta.finish_reason is not None:
            self._finish_reason, self._stop = delta.finish_reason, delta.stop
        self._compliance = delta.compliance or self._compliance
        return events

    def text_form(self, index: int) -> Made:
        return Made(_DELTA, self._text_data)

    def _text_data(self, text: Text) -> bytes | None:
        block = self._block
        if block is None or block.kind is not _TEXT:
            return None
        return block.head + text + _TAIL

    def closing(self, usage: Usage) -> list[Event]:
        reason = self._stop_reason(usage)
        delta: dict[str, Any] = {"stop_reason": reason, "stop_sequence": self._stop_sequence}
        if self._compliance is not None:
            delta["structured_outputs"] = self._compliance
        return [
            *self._close_block(),
            _event("message_delta", delta=delta, usage=_usage_of(usage)),
            _event("message_stop"),
        ]

    def failure(self, error: ApiError) -> list[Event]:
        return [Event("error", error_body(error))]

    def heartbeat(self) -> Event:
        return _event("ping")

    # -- as a whole

    def add(self, delta: Delta) -> None:
        """Collect a delta for ``body``."""
        self.delta(delta)

    def body(self, usage: Usage) -> bytes:
        """The whole answer."""
        self._close_block()
        message = self._message(self._stop_reason(usage), _usage_of(usage))
        if self._compliance is not None:
            message["structured_outputs"] = self._compliance
        return _encode(message)

    def _message(self, stop_reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._content,
            "stop_reason": stop_reason,
            "stop_sequence": None if stop_reason is None else self._stop_sequence,
            "usage": usage,
        }

    @property
    def _stop_sequence(self) -> str | None:
        return self._stop if self._finish_reason == "stop" else None

    def _stop_reason(self, usage: Usage) -> str:
        if self._stop_sequence is not None:
            return "stop_sequence"
        if self._finish_reason == "length":
            is_full = self._room is not None and usage.completion_tokens >= self._room
            return "model_context_window_exceeded" if is_full else "max_tokens"
        return _STOP_REASONS[self._finish_reason]

    # -- blocks

    def _add_text(self, kind: _Kind, text: str) -> list[Event]:
        block, events = self._block, list[Event]()
        if block is None or block.kind is not kind:
            begun: dict[str, Any] = {"type": kind.field, kind.field: ""}
            if kind is _THINKING:
                begun["signature"] = ""
            block, events = self._open(kind, begun)
        return [*events, block.add(text)]

    def _add_call(self, piece: ToolCallDelta) -> list[Event]:
        block, events = self._block, list[Event]()
        if block is None or block.number != piece.index:
            name = piece.function.name
            begun: dict[str, Any] = {"type": "tool_use", "id": piece.id, "name": name, "input": {}}
            block, events = self._open(_TOOL_USE, begun, piece.index)
        arguments = piece.function.arguments
        if isinstance(arguments, str) and arguments:
            events.append(block.add(arguments))
        return events

    def _open(
        self, kind: _Kind, begun: dict[str, Any], number: int | None = None
    ) -> tuple[_Block, list[Event]]:
        events = self._close_block()
        block = self._block = _Block(kind, self._num_blocks, begun, number)
        self._num_blocks += 1
        events.append(_event("content_block_start", index=block.index, content_block=begun))
        return block, events

    def _close_block(self) -> list[Event]:
        block, self._block = self._block, None
        if block is None:
            return []
        text = "".join(block.said)
        stop = _event("content_block_stop", index=block.index)
        if block.kind is _TOOL_USE:
            self._content.append(block.begun | {"input": _object(text)})
            return [stop]
        whole = block.begun | {block.kind.field: text}
        self._content.append(whole)
        if block.kind is not _THINKING:
            return [stop]
        # Clients leave thinking without a signature out of what they send back. Nothing is verified
        # then, so that any will do.
        whole["signature"] = self._id
        delta = {"type": "signature_delta", "signature": self._id}
        return [_event(_DELTA, index=block.index, delta=delta), stop]


class _Kind(NamedTuple):
    """A kind of block: the type of its deltas, and the field in them."""

    delta: str
    field: str


_TEXT = _Kind("text_delta", "text")
_THINKING = _Kind("thinking_delta", "thinking")
_TOOL_USE = _Kind("input_json_delta", "partial_json")


class _Block:
    """A block that is being generated."""

    __slots__ = ("begun", "head", "index", "kind", "number", "said")

    def __init__(self, kind: _Kind, index: int, begun: dict[str, Any], number: int | None) -> None:
        """``begun``: the block while it is empty. ``number``: of a call among those of the
        answer."""
        self.kind = kind
        self.index = index
        self.begun = begun
        self.number = number
        self.said: list[str] = []
        head = {"type": _DELTA, "index": index, "delta": {"type": kind.delta, kind.field: ""}}
        self.head = _encode(head).removesuffix(_TAIL)
        """What the data of a delta begins with, up to the text in it."""

    def add(self, text: str) -> Event:
        self.said.append(text)
        return Event(_DELTA, self.head + orjson.dumps(text)[1:-1] + _TAIL)


def _object(text: str) -> dict[str, Any]:
    """The arguments of a call; empty if the answer ended inside of them, as its stop reason
    tells."""
    try:
        value = orjson.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage_of(usage: Usage) -> dict[str, Any]:
    return _usage(
        usage.prompt_tokens,
        usage.prompt_tokens_details.cached_tokens,
        usage.completion_tokens,
        usage.completion_tokens_details.reasoning_tokens,
    )


def _usage(
    num_prompt: int, num_cached: int, num_generated: int = 0, num_reasoning: int = 0
) -> dict[str, Any]:
    """Anthropic's usage object, in which input tokens are those that were not cached."""
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_generated,
        "output_tokens_details": {"thinking_tokens": num_reasoning},
    }


def _event(kind: str, **fields: object) -> Event:
    return Event(kind, _encode({"type": kind, **fields}))


# -- errors

OVERLOADED = 529
"""Anthropic's status where others have 503."""
_ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    OVERLOADED: "overloaded_error",
}


def error_status(error: ApiError) -> int:
    return OVERLOADED if error.status == 503 else error.status


def error_body(error: ApiError, request_id: str | None = None) -> bytes:
    """The error in Anthropic's form. ``request_id``: None inside of a stream, whose head has it."""
    kind = _ERROR_TYPES.get(error_status(error), "invalid_request_error")
    body: dict[str, Any] = {
        "type": "error",
        "error": {"type": kind, "message": error.object().message},
    }
    if error.code == NO_THREADS:
        body["error"]["details"] = {"error_code": NO_THREADS, "unsupported": ["thread"]}
    return _encode(body if request_id is None else {**body, "request_id": request_id})
