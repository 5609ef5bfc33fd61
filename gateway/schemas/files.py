"""OpenAI's Files."""

from __future__ import annotations

import msgspec

from gateway.schemas.shown import IdList, Shown


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


class FileList(IdList[FileObject], frozen=True, kw_only=True):
    """Of a tenant."""


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "file"
    deleted: bool = True
