"""Encodes chunks and whole answers of Chat Completions. No I/O.

The chunks of a stream differ in a few characters only. So each is joined from a prepared head, the
encoded text and a prepared tail, which costs a fraction of encoding an object.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from gateway.answers.chunks import CompletionEncoder, Head, shown
from gateway.generation.delta import Delta
from gateway.generation.events import Around, Event
from gateway.generation.token_logprobs import ChoiceLogprobs, TokenLogprob
from gateway.parsers.base import joined_pieces
from gateway.schemas.common import Compliance

_encode = msgspec.json.Encoder().encode


class ChatEncoder(CompletionEncoder):
    """The ``Encoder`` of a chat completion, whole or streamed. Choice 0 opens before choice 1: SDKs
    fail on any other order."""

    def __init__(
        self, head: Head, num_choices: int = 1, metadata: dict[str, str] | None = None
    ) -> None:
        super().__init__(head, ("chat.completion", "chat.completion.chunk"), metadata)
        self._collected = [_CollectedChoice() for _ in range(num_choices)]
        self._num_choices = num_choices
        self._content_heads = [
            self._head + b'{"index":%d,"delta":{"content":' % index for index in range(num_choices)
        ]
        self._content_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self._heartbeat = self._content_heads[0] + b'""' + self._content_tail

    def opening(self) -> list[Event]:
        return [
            Event("", self._choice(index, b'{"role":"assistant","content":""}'))
            for index in range(self._num_choices)
        ]

    def delta(self, delta: Delta) -> list[Event]:
        """One event, or several if text, calls and the end came together."""
        if self._is_plain(delta):
            head = self._content_heads[delta.index]
            return [Event("", head + orjson.dumps(delta.content) + self._content_tail)]
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
            for piece in joined_pieces(delta.tool_calls)
        ]
        if delta.finish_reason is not None:
            events.append(self._last(delta))
        return [self._padded(event) for event in events]

    def text_form(self, index: int) -> Around | None:
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
        assert delta.finish_reason is not None
        return self._choice(delta.index, b"{}", shown(delta.finish_reason) + extra)

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
