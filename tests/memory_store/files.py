"""``Files`` in memory. It behaves as ``tenants.files`` does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from tenants.errors import ObjectNotFound
from tenants.files import MAX_FILES, Files, StoredFile


class MemoryFiles(Files):
    """For the gateways of one process."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._pieces: dict[tuple[UUID, str], list[bytes]] = {}
        self._complete: dict[tuple[UUID, str], StoredFile] = {}

    async def begin(self, tenant_id: UUID, file_id: str, *, max_files: int = MAX_FILES) -> bool:
        if sum(owner == tenant_id for owner, _ in self._pieces) >= max_files:
            return False
        self._pieces[tenant_id, file_id] = []
        return True

    async def append(self, tenant_id: UUID, file_id: str, data: bytes, *, max_bytes: int) -> bool:
        if (tenant_id, file_id) not in self._pieces or (tenant_id, file_id) in self._complete:
            raise ObjectNotFound("file", file_id)
        if await self.used(tenant_id) + len(data) > max_bytes:
            return False
        self._pieces[tenant_id, file_id].append(data)
        return True

    async def complete(
        self, tenant_id: UUID, file_id: str, filename: str, purpose: str, lasts: timedelta | None
    ) -> StoredFile:
        key, now = (tenant_id, file_id), self._now()
        if key not in self._pieces or key in self._complete:
            raise ObjectNotFound("file", file_id)
        size = sum(map(len, self._pieces[key]))
        ends = None if lasts is None else now + lasts
        self._complete[key] = StoredFile(file_id, filename, purpose, size, now, ends)
        return self._complete[key]

    async def abandon(self, tenant_id: UUID, file_id: str) -> None:
        if (tenant_id, file_id) not in self._complete:
            self._pieces.pop((tenant_id, file_id), None)

    async def used(self, tenant_id: UUID) -> int:
        return sum(
            len(piece)
            for (owner, _), pieces in self._pieces.items()
            if owner == tenant_id
            for piece in pieces
        )

    async def find(self, tenant_id: UUID, file_id: str) -> StoredFile | None:
        found = self._complete.get((tenant_id, file_id))
        if found is None or (found.expires_at is not None and found.expires_at <= self._now()):
            return None
        return found

    async def list(
        self,
        tenant_id: UUID,
        *,
        limit: int,
        purpose: str | None = None,
        after: str | None = None,
        is_descending: bool = True,
    ) -> Sequence[StoredFile]:
        mine = sorted(file_id for owner, file_id in self._complete if owner == tenant_id)
        found = [
            file
            for file_id in (reversed(mine) if is_descending else mine)
            if (file := await self.find(tenant_id, file_id)) is not None
            and purpose in (None, file.purpose)
            and (after is None or (file_id < after if is_descending else file_id > after))
        ]
        return found[:limit]

    async def delete(self, tenant_id: UUID, file_id: str) -> bool:
        if self._complete.pop((tenant_id, file_id), None) is None:
            return False
        del self._pieces[tenant_id, file_id]
        return True

    async def content(self, tenant_id: UUID, file_id: str) -> AsyncIterator[bytes]:
        for piece in self._pieces.get((tenant_id, file_id), ()):
            yield piece
