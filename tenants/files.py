"""Files that tenants upload, or batches write: rows of at most a megabyte each, never whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from tenants import queries
from tenants.connections import Connections, Row
from tenants.errors import ObjectNotFound, TenantsError

CHUNK_BYTES = 512 * 1024
"""Of a file that is uploaded, in each row but the last."""
MAX_FILES = 10_000
"""Of one tenant, so that the sum of their sizes stays quick."""

_SQL = queries.load()


class StoredFile(NamedTuple):
    id: str
    filename: str
    purpose: str
    size: int
    created_at: datetime
    expires_at: datetime | None


class Files:
    """Uses the connections of a ``Store``, which closes them. Every method may raise
    ``StoreUnavailable``. Files of other tenants are never found, nor are those that are not
    complete, or have expired."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def begin(self, tenant_id: UUID, file_id: str, *, max_files: int = MAX_FILES) -> bool:
        """Begin a file, which goes by itself if nothing is appended for an hour; False if the
        tenant has ``max_files``. Raises ``ObjectNotFound`` for a tenant that there is not."""
        fkey: Mapping[str, TenantsError] = {
            "file_tenant_id_fkey": ObjectNotFound("tenant", tenant_id)
        }
        query, values = _SQL["begin_file"], (tenant_id, file_id, max_files)
        return bool(
            await self._connections.fetch_in_turn(
                query, values, tenant_id=tenant_id, violations=fkey
            )
        )

    async def append(self, tenant_id: UUID, file_id: str, data: bytes, *, max_bytes: int) -> bool:
        """Append to a file that is not complete; False if the tenant's would have more than
        ``max_bytes`` in all. Raises ``ObjectNotFound`` if it is gone."""
        (row,) = await self._fetch(tenant_id, "append_to_file", file_id, data, max_bytes)
        if row["appended"] is None:
            raise ObjectNotFound("file", file_id)
        appended: bool = row["appended"]
        return appended

    async def complete(
        self, tenant_id: UUID, file_id: str, filename: str, purpose: str, lasts: timedelta | None
    ) -> StoredFile:
        """Let a file be found. lasts: until it expires; None: it does not. Raises
        ``ObjectNotFound`` if it is gone."""
        values = (file_id, filename, purpose, lasts)
        found = _one(await self._fetch(tenant_id, "complete_file", *values))
        if found is None:
            raise ObjectNotFound("file", file_id)
        return found

    async def abandon(self, tenant_id: UUID, file_id: str) -> None:
        """Delete a file that is not complete, if there is one."""
        await self._fetch(tenant_id, "abandon_file", file_id)

    async def used(self, tenant_id: UUID) -> int:
        """The bytes of all files of a tenant, incomplete ones too."""
        (row,) = await self._connections.fetch_in_turn(
            _SQL["sum_files"], (tenant_id,), tenant_id=tenant_id
        )
        size: int = row["size"]
        return size

    async def find(self, tenant_id: UUID, file_id: str) -> StoredFile | None:
        return _one(await self._fetch(tenant_id, "find_file", file_id))

    async def list(
        self,
        tenant_id: UUID,
        *,
        limit: int,
        purpose: str | None = None,
        after: str | None = None,
        is_descending: bool = True,
    ) -> Sequence[StoredFile]:
        """Files in the order in which they were begun. after: the id of the one before the
        page."""
        values = (tenant_id, purpose, None if after is None else _plain(after), is_descending)
        rows = await self._connections.fetch_in_turn(
            _SQL["list_files"], (*values, limit), tenant_id=tenant_id
        )
        return [StoredFile(**row) for row in rows]

    async def delete(self, tenant_id: UUID, file_id: str) -> bool:
        """Delete a file with all its bytes; False if there is none."""
        return bool(await self._fetch(tenant_id, "delete_file", file_id))

    async def content(self, tenant_id: UUID, file_id: str) -> AsyncIterator[bytes]:
        """The bytes of a file in pieces; they end early if it is deleted meanwhile."""
        number = 0
        while rows := await self._fetch(tenant_id, "read_file", file_id, number):
            yield rows[0]["data"]
            number += 1

    async def _fetch(
        self, tenant_id: UUID, name: str, file_id: str, *values: object
    ) -> Sequence[Row]:
        return await self._connections.fetch_in_turn(
            _SQL[name], (tenant_id, _plain(file_id), *values), tenant_id=tenant_id
        )


def _one(rows: Sequence[Row]) -> StoredFile | None:
    return StoredFile(**rows[0]) if rows else None


def _plain(name: str) -> str:
    """Clients may send any text as an id. PostgreSQL rejects NUL, which no id of ours contains."""
    return name.replace("\0", "")
