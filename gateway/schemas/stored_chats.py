"""Stored chat completions."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.schemas.shown import IdList


class UpdateChat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metadata: dict[str, str] | None


class StoredList(IdList[Any], frozen=True, kw_only=True):
    """A page of completions, or of the messages of one."""


class DeletedChat(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.deleted"
    deleted: bool = True
