"""What an exchange with an MCP server is given, and what comes of it. Knows no ``mcp`` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

FailureKind = Literal["mcp_protocol_error", "http_error"]


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and how long and how much it may answer."""

    url: str
    networks: Sequence[str]
    """Where it may be beside public addresses."""
    headers: Mapping[str, str]
    timeout_s: float
    max_bytes: int


class RemoteTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as its server describes it."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool answered."""

    text: str
    is_error: bool = False


class CallFailed(Exception):
    """The server gave no answer: the message says why."""

    def __init__(self, kind: FailureKind, code: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message
