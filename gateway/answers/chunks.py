"""What the chunks of Chat Completions and of Completions have in common: their ends and padding."""

from __future__ import annotations

import secrets

import msgspec

from gateway.errors import ApiError
from gateway.schemas.common import Usage

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


def obfuscated(event: bytes) -> bytes:
    """The chunk ``event``, padded to a multiple of ``_PADDED_BYTES``. Otherwise whoever observes an
    encrypted connection can infer text from the sizes (Whisper Leak, arXiv:2511.03675)."""
    size = -(len(event) + len(_PADDING % b"")) % _PADDED_BYTES
    noise = secrets.token_urlsafe(size)[:size].encode()
    return event.removesuffix(b"}\n\n") + _PADDING % noise + b"}\n\n"
