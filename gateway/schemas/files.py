"""OpenAI's Files."""

from __future__ import annotations

import msgspec

from gateway.schemas.shown import Shown


class FileObject(Shown, frozen=True, kw_only=True):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str = "processed"
    status_details: str | None = None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "file"
    deleted: bool = True
