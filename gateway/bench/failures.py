"""Counts failed requests by reason, with the first message of each."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

MAX_MESSAGE = 300
"""Characters of a message that are kept."""


class ErrorBody(msgspec.Struct, frozen=True):
    """The fields of OpenAI's error object that are reported."""

    message: str = ""
    code: str | int | None = None
    type: str | None = None

    @property
    def name(self) -> str:
        return str(self.code or self.type or "without a code")


class Failure(msgspec.Struct, frozen=True):
    """The failure of one request."""

    reason: str
    """The reason, which is the same for all requests that failed in the same way."""
    message: str = ""

    @classmethod
    def of_status(cls, status: int, body: bytes) -> Failure:
        """The failure of a request whose answer was not a stream."""
        error = _error_in(body)
        if error is None:
            return cls(f"HTTP {status}", body.decode(errors="replace")[:MAX_MESSAGE])
        return cls(f"HTTP {status} {error.name}", error.message[:MAX_MESSAGE])

    @classmethod
    def of_event(cls, error: ErrorBody) -> Failure:
        """The failure of a stream with an error event."""
        return cls(f"error event {error.name}", error.message[:MAX_MESSAGE])


class FailureCount(msgspec.Struct, frozen=True):
    """The number of failures with one reason."""

    reason: str
    count: int
    message: str
    """The message of the first one."""


def by_reason(failures: Iterable[Failure]) -> list[FailureCount]:
    """Count failures by reason, the most frequent first."""
    found: dict[str, list[Failure]] = {}
    for failure in failures:
        found.setdefault(failure.reason, []).append(failure)
    counts = [FailureCount(reason, len(some), some[0].message) for reason, some in found.items()]
    return sorted(counts, key=lambda one: -one.count)


class _Body(msgspec.Struct, frozen=True):
    error: ErrorBody


_decode_body = msgspec.json.Decoder(_Body).decode


def _error_in(body: bytes) -> ErrorBody | None:
    try:
        return _decode_body(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
