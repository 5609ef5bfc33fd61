"""Takes uploads into the store, in pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from gateway.batches.form import Form
from gateway.config import Config
from gateway.errors import (
    Conflict,
    InvalidRequestError,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    quoted,
)
from tenants.errors import TenantsError
from tenants.files import CHUNK_BYTES, MAX_FILES, Files, StoredFile
from tenants.request_ids import new_request_id

PURPOSES = ("batch", "vision", "user_data")
BATCH_FILES_LAST = timedelta(days=30)
"""If nothing else is asked for, as at OpenAI. Other files stay until they are deleted."""
LEAST_S, MOST_S = 3600, 30 * 86400
MAX_UPLOADS = 8
"""Of one tenant at once, in each worker, which has a piece of each in memory."""

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


class Uploads:
    """Takes files of any size with little memory."""

    def __init__(self, config: Config, files: Files) -> None:
        self._files = files
        self._max_bytes = config.server.max_file_bytes
        self._max_tenant_bytes = config.tenants.max_files_bytes
        self._num_running: dict[UUID, int] = {}

    async def take(self, tenant_id: UUID, form: Form) -> StoredFile:
        """Store the file of a form. Raises ``ApiError`` and ``TenantsError``; nothing of it is kept
        then, nor if the client leaves."""
        num_running = self._num_running.get(tenant_id, 0)
        if num_running >= MAX_UPLOADS:
            raise RateLimited(f"{MAX_UPLOADS} uploads of your tenant run already.", retry_after_s=1)
        self._num_running[tenant_id] = num_running + 1
        try:
            return await self._take(tenant_id, form)
        finally:
            self._num_running[tenant_id] -= 1
            if not self._num_running[tenant_id]:
                del self._num_running[tenant_id]

    async def _take(self, tenant_id: UUID, form: Form) -> StoredFile:
        file_id, size = new_file_id(), 0
        if not await self._files.begin(tenant_id, file_id):
            raise Conflict(
                f"Your tenant has {MAX_FILES} files; delete some.", code="too_many_files"
            )
        try:
            async for piece in form.pieces(CHUNK_BYTES):
                size += len(piece)
                if size > self._max_bytes:
                    raise PayloadTooLarge(f"A file has at most {self._max_bytes} bytes.")
                await self._append(tenant_id, file_id, piece)
            if not size:
                raise InvalidRequestError("The file is empty.", param="file")
            purpose, lasts = read_fields(form.fields)
            return await self._files.complete(
                tenant_id, file_id, form.filename or "file", purpose, lasts
            )
        except BaseException:
            # Also when the client leaves; what a killed process leaves goes by itself.
            await asyncio.shield(self._abandon(tenant_id, file_id))
            raise

    async def _append(self, tenant_id: UUID, file_id: str, piece: bytes) -> None:
        most = self._max_tenant_bytes
        if not await self._files.append(tenant_id, file_id, piece, max_bytes=most):
            raise PayloadTooLarge(
                f"All files of a tenant have at most {most} bytes "
                "(the server's tenants.max_files_bytes); delete some.",
                code="file_quota_exceeded",
            )

    async def _abandon(self, tenant_id: UUID, file_id: str) -> None:
        with contextlib.suppress(TenantsError):  # It goes by itself within an hour.
            await self._files.abandon(tenant_id, file_id)


def read_fields(fields: Mapping[str, str]) -> tuple[str, timedelta | None]:
    """The purpose of a file, and how long it lasts. Raises ``InvalidRequestError``."""
    for name in fields:
        if name not in ("purpose", _ANCHOR, _SECONDS):
            raise InvalidRequestError(
                f"Unknown parameter: {quoted(name)}.", param=name, code="unknown_parameter"
            )
    if (purpose := fields.get("purpose")) not in PURPOSES:
        raise InvalidRequestError(
            f"Must be one of {', '.join(PURPOSES)}, is {quoted(str(purpose))}; user_data is for "
            "files of any kind.",
            param="purpose",
        )
    if (_ANCHOR in fields) != (_SECONDS in fields):
        raise InvalidRequestError("Needs anchor and seconds.", param="expires_after")
    if _ANCHOR not in fields:
        return purpose, BATCH_FILES_LAST if purpose == "batch" else None
    seconds = fields[_SECONDS]
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 9):
        raise InvalidRequestError("Must be a number.", param=_SECONDS)
    return purpose, lasting(fields[_ANCHOR], int(seconds), "expires_after")


def lasting(anchor: str, seconds: int, param: str) -> timedelta:
    """How long a file lasts. Raises ``InvalidRequestError``."""
    if anchor != "created_at":
        raise InvalidRequestError("Must be created_at.", param=f"{param}.anchor")
    if not LEAST_S <= seconds <= MOST_S:
        raise InvalidRequestError(f"Must be from {LEAST_S} to {MOST_S}.", param=f"{param}.seconds")
    return timedelta(seconds=seconds)


def new_file_id() -> str:
    """It begins with the time, so that ids are in the order of creation."""
    return f"file-{new_request_id().hex}"


async def find_file(files: Files, tenant_id: UUID, file_id: str) -> StoredFile:
    """Raises ``NotFound``, ``TenantsError``."""
    found = await files.find(tenant_id, file_id)
    if found is None:
        raise no_file(file_id)
    return found


def no_file(file_id: str) -> NotFound:
    return NotFound(f"There is no file {quoted(file_id)}.", code="file_not_found")
