"""What the chunks of Chat Completions and of Completions have in common: their ends and padding."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import orjson

from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.events import Event
from gateway.schemas.common import Usage

DONE = Event("", b"[DONE]")

_NUM_AROUND = len(b"data: \n\n")
"""Bytes around the data of a server-sent event."""
_PADDED_BYTES = 64
_PADDING = b',"obfuscation":"%s"'

_encode = msgspec.json.Encoder().encode


class Head(NamedTuple):
    """What all chunks of an answer begin with, and what its client wants of them."""

    id: str
    created: int
    model: str
    service_tier: str | None = None
    has_usage: bool = False
    is_obfuscated: bool = False


class Collected(Protocol):
    """One choice of an answer that is not streamed."""

    def add(self, delta: Delta) -> None: ...

    def object(self, index: int) -> dict[str, Any]: ...


class CompletionEncoder:
    """What is the same in Chat Completions and Completions: whole bodies, and the last events of
    streams."""

    _collected: Sequence[Collected]
    """The choices of the body so far."""
    _heartbeat: bytes
    """A chunk without content. A comment would not do: some SDKs fail on comments."""

    def __init__(
        self, head: Head, kinds: tuple[str, str], metadata: dict[str, str] | None = None
    ) -> None:
        """``kinds``: what bodies and chunks call themselves. ``metadata``: of the body."""
        self._has_usage = head.has_usage
        self._is_obfuscated = head.is_obfuscated
        fields = {"id": head.id, "object": kinds[0], "created": head.created, "model": head.model}
        tier = {} if head.service_tier is None else {"service_tier": head.service_tier}
        told = {} if metadata is None else {"metadata": metadata}
        self._whole: dict[str, Any] = fields | {"system_fingerprint": None} | told | tier
        """The fields of the body but its choices and usage."""
        chunk = fields | {"object": kinds[1]} | tier | {"system_fingerprint": None}
        self._head = orjson.dumps(chunk)[:-1] + b',"choices":['
        """What a chunk begins with, up to its list of choices."""
        self._tail = b'],"usage":null}' if head.has_usage else b"]}"

    def add(self, delta: Delta) -> None:
        """Collect a delta for ``body``."""
        self._collected[delta.index].add(delta)

    def body(self, usage: Usage) -> bytes:
        """The whole answer."""
        choices = [choice.object(index) for index, choice in enumerate(self._collected)]
        return _encode({**self._whole, "choices": choices, "usage": usage})

    def closing(self, usage: Usage) -> list[Event]:
        """The events after the last delta, only after success: ``[DONE]`` tells the client that
        nothing is missing."""
        if not self._has_usage:
            return [DONE]
        return [Event("", self._head + b'],"usage":' + _encode(usage) + b"}"), DONE]

    def failure(self, error: ApiError) -> list[Event]:
        """The last event of a failed stream. SDKs raise an exception for it."""
        return [Event("", error.body())]

    def heartbeat(self) -> Event:
        return Event("", self._heartbeat)

    def _padded(self, chunk: bytes) -> Event:
        """A chunk with text, padded if that is asked for."""
        return Event(
            "", obfuscated(chunk, num_around=_NUM_AROUND) if self._is_obfuscated else chunk
        )


def shown(finish_reason: str) -> bytes:
    """A finish reason as JSON; for ``cancelled`` the closest one that OpenAI's clients know."""
    return orjson.dumps("stop" if finish_reason == "cancelled" else finish_reason)


def obfuscated(data: bytes, *, num_around: int) -> bytes:
    """The JSON object ``data``, padded so that with ``num_around`` bytes around it it is a multiple
    of ``_PADDED_BYTES`` long. Otherwise whoever observes an encrypted connection can infer text
    from the sizes (Whisper Leak, arXiv:2511.03675)."""
    size = -(len(data) + num_around + len(_PADDING % b"")) % _PADDED_BYTES
    noise = secrets.token_urlsafe(size)[:size].encode()
    return data.removesuffix(b"}") + _PADDING % noise + b"}"
