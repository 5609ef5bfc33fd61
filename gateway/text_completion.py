"""What goes over the wire for ``POST /v1/completions``. Pure logic, no I/O, as ``assembler``.

Choices are numbered prompt by prompt: ``n`` answers of the first prompt, then of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from gateway.assembler import DONE, Delta
from gateway.errors import ApiError
from gateway.schemas.common import Usage

_encode = msgspec.json.Encoder().encode


class TextChunks:
    """The server-sent events of one streamed text completion: whole events, as bytes."""

    def __init__(
        self,
        *,
        completion_id: str,
        created: int,
        model: str,
        echoes: Sequence[str],
        has_usage: bool,
    ) -> None:
        """``echoes``: for each choice the text before its answer, or nothing."""
        self._has_usage = has_usage
        self._echoes = echoes
        self._head = (
            b'data: {"id":%s,"object":"text_completion","created":%d,"model":%s,'
            b'"system_fingerprint":null,"choices":['
            % (orjson.dumps(completion_id), created, orjson.dumps(model))
        )
        self._tail = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"
        self._heads = [self._head + b'{"index":%d,"text":' % index for index in range(len(echoes))]
        self.heartbeat = self._choice(0, "")
        """A chunk that adds nothing: SDKs choke on comments, never on this."""

    def opening(self) -> bytes:
        """The prompts, where they are echoed; else nothing."""
        return b"".join(
            self._choice(index, echo) for index, echo in enumerate(self._echoes) if echo
        )

    def delta(self, delta: Delta) -> bytes:
        reason = b"null" if delta.finish_reason is None else orjson.dumps(delta.finish_reason)
        return self._choice(delta.index, delta.content, reason)

    def closing(self, usage: Usage) -> bytes:
        """Only after success: ``[DONE]`` tells the client that nothing is missing."""
        if not self._has_usage:
            return DONE
        return self._head + b'],"usage":' + _encode(usage) + b"}\n\n" + DONE

    def error(self, error: ApiError) -> bytes:
        """The last event of a failed stream: SDKs raise on it."""
        return b"data: " + error.body() + b"\n\n"

    def _choice(self, index: int, text: str, finish_reason: bytes = b"null") -> bytes:
        return b'%s%s,"logprobs":null,"finish_reason":%s}%s' % (
            self._heads[index],
            orjson.dumps(text),
            finish_reason,
            self._tail,
        )


class TextCompletion:
    """Collects the deltas of a text completion that is not streamed."""

    def __init__(
        self, *, completion_id: str, created: int, model: str, echoes: Sequence[str]
    ) -> None:
        """``echoes``: as in ``TextChunks``."""
        self._head: dict[str, Any] = {
            "id": completion_id,
            "object": "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._texts = [[echo] for echo in echoes]
        self._finish_reasons: list[str | None] = [None] * len(echoes)

    def add(self, delta: Delta) -> None:
        self._texts[delta.index].append(delta.content)
        self._finish_reasons[delta.index] = delta.finish_reason

    def body(self, usage: Usage) -> bytes:
        choices = [
            {"index": index, "text": "".join(text), "logprobs": None, "finish_reason": reason}
            for index, (text, reason) in enumerate(
                zip(self._texts, self._finish_reasons, strict=True)
            )
        ]
        return _encode({**self._head, "choices": choices, "usage": usage})
