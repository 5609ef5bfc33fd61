"""Structured logs on stderr: a line for each record, as JSON, or as text with ``key=value`` pairs.

Prompts, answers and keys are never logged; a key appears as its public id.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal


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
    # It logs a traceback for each try while the database is away, of which ``OutageLog`` tells.
    logging.getLogger("asyncpg.pool").setLevel(max(logging.ERROR, root.level))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", {})
    assert isinstance(fields, dict)
    return fields


def _word(value: object) -> str:
    """A field's value, quoted if a client's text could otherwise forge a line or a field."""
    text = str(value)
    plain = text.isprintable() and not any(char in text for char in ' "=')
    return text if plain and text else json.dumps(text)
