"""``POST /v1/schemas/check``: what of a schema is enforced."""

from __future__ import annotations

from typing import Any

import msgspec


class SchemaCheckRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    schema: dict[str, Any] | bool


class UnenforcedKeyword(msgspec.Struct, frozen=True, kw_only=True):
    keyword: str
    pointer: str
    """A JSON pointer into ``schema``, in the words of draft 2020-12."""
    reason: str


class SchemaProblem(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    pointer: str


class SchemaReport(msgspec.Struct, frozen=True, kw_only=True):
    strict: bool
    """Whether ``strict: true`` takes it: all of it is enforced."""
    error: SchemaProblem | None
    """Why it cannot be used at all, strict or not."""
    unenforced: list[UnenforcedKeyword]
    """What is checked when an answer has ended, and refused with ``strict: true``."""
    backend: str | None
    bytes: int
    """Of the schema as JSON."""
    compiled_chars: int | None
    """Of the schema as the backend gets it, with all that it combines written out."""
