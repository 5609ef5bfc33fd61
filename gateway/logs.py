"""Structured logs on stderr: a line for each record, as JSON, or as text with ``key=value`` pairs.

Prompts, answers and keys are never logged; a key appears as its public id.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

trace_ids: ContextVar[Mapping[str, str]] = ContextVar("trace_ids", default=MappingProxyType({}))
"""Fields of each line that is logged while a traced request is answered."""


class LogThrottle:
    """Bounds how many lines of each kind are logged, for those that a client can cause at will: at
    first some at once, then one from time to time."""

    MAX_KINDS = 1024
    """Kinds that are remembered; the one that was quiet for longest makes room."""

    def __init__(
        self, *, burst: int, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``burst``: lines of a kind that may come at once. ``per_s``: how many a second may follow
        for good."""
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._kinds: dict[Hashable, _Kind] = {}

    def admit(self, kind: Hashable) -> int | None:
        """The number of lines of this kind that were left out since the last one; None if this one
        is to be left out, too."""
        now = self._clock()
        known = self._kinds.pop(kind, None) or _Kind(float(self._burst), now)
        self._kinds[kind] = known  # as the last one
        if len(self._kinds) > self.MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        known.room = min(self._burst, known.room + (now - known.at) * self._per_s)
        known.at = now
        if known.room < 1:
            known.num_left_out += 1
            return None
        known.room -= 1
        num_left_out, known.num_left_out = known.num_left_out, 0
        return num_left_out


class _Kind:
    """The state of a ``LogThrottle`` for one kind of lines."""

    __slots__ = ("at", "num_left_out", "room")

    def __init__(self, room: float, at: float) -> None:
        self.room = room
        """Lines that may come at once, as of ``at``."""
        self.at = at
        self.num_left_out = 0


class SeldomFilter(logging.Filter):
    """Bounds the records of each message, whoever causes them; arguments make no difference."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = LogThrottle(burst=10, per_s=0.2)

    def filter(self, record: logging.LogRecord) -> bool:
        num_left_out = self._throttle.admit(record.msg)
        if num_left_out:
            record.fields = {"left_out": num_left_out}
        return num_left_out is not None


class JsonFormatter(logging.Formatter):
    def __init__(self, *, has_pid: bool = False) -> None:
        super().__init__()
        self._has_pid = has_pid

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **({"pid": record.process} if self._has_pid else {}),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    def __init__(self, *, has_pid: bool = False) -> None:
        pid = "[%(process)d] " if has_pid else ""
        super().__init__(f"%(asctime)s %(levelname)-7s {pid}%(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={_word(value)}" for key, value in _fields(record).items())
        return f"{super().formatMessage(record)} {fields}".rstrip()


def configure(level: str, form: Literal["json", "text"], *, has_pid: bool = False) -> None:
    """Replace the root logger's handlers with one on stderr. has_pid: each line names its process,
    where several have one log."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter if form == "json" else TextFormatter
    handler.setFormatter(formatter(has_pid=has_pid))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # They log query strings and, at debug level, whole frames, which contain prompts and keys.
    logging.getLogger("uvicorn.access").disabled = True
    for name in ("uvicorn.error", "websockets", "asyncio", "sse_starlette"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # It logs a line for each request that is not valid HTTP.
    logging.getLogger("uvicorn.error").filters[:] = [SeldomFilter()]
    # It logs a traceback for each try while the database is away, of which ``OutageLog`` tells.
    logging.getLogger("asyncpg.pool").setLevel(max(logging.ERROR, root.level))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", {})
    assert isinstance(fields, dict)
    return {**fields, **trace_ids.get()}


def _word(value: object) -> str:
    """A field's value, quoted if a client's text could otherwise forge a line or a field."""
    text = str(value)
    plain = text.isprintable() and not any(char in text for char in ' "=')
    return text if plain and text else json.dumps(text)
