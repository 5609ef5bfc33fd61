"""Stored chat completions."""

from __future__ import annotations

from typing import Any

import msgspec


class UpdateChat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metadata: dict[str, str] | None


class StoredList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of completions, or of the messages of one."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedChat(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.deleted"
    deleted: bool = True
