"""What the chunks of Chat Completions and of Completions have in common: their ends and padding."""

from __future__ import annotations

import secrets

import msgspec
import orjson

from gateway.errors import ApiError
from gateway.generation.events import Event
from gateway.schemas.common import Usage

DONE = Event("", b"[DONE]")

NUM_AROUND = len(b"data: \n\n")
"""Bytes around the data of a server-sent event."""
_PADDED_BYTES = 64
_PADDING = b',"obfuscation":"%s"'

_encode = msgspec.json.Encoder().encode


class StreamEnds:
    """The last events of a stream, the same in Chat Completions and Completions."""

    _head: bytes
    """What a chunk begins with, up to its list of choices."""
    _has_usage: bool
    _heartbeat: bytes
    """A chunk without content. A comment would not do: some SDKs fail on comments."""

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
