"""``SharedState`` in PostgreSQL. Every statement is in ``queries.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from tenants import queries
from tenants.batches import Batcher, send_each
from tenants.connections import Connections, Row
from tenants.errors import InvalidValue, TenantNotFound
from tenants.postgres_upkeep import PostgresUpkeep
from tenants.shared import ArchivedStream, Claim, SharedState, StoredResponse, WorkerAddress

MAX_STREAMS = 16
"""The most streams that are stored at once. Each may have some hundred kilobytes."""

PATIENCE_S = 0.1
"""How long an ended stream waits to be stored with others."""

_SQL = queries.load()


class _Ended(NamedTuple):
    stream: ArchivedStream
    retention: timedelta

    @property
    def identity(self) -> tuple[UUID, str]:
        return self.stream.tenant_id, self.stream.id


class _Key(NamedTuple):
    key_hash: bytes
    tenant_id: UUID


class PostgresShared(SharedState):
    """Uses the connections of a ``PostgresStore``, which closes them."""

    def __init__(self, connections: Connections, upkeep: PostgresUpkeep) -> None:
        self._connections = connections
        self._upkeep = upkeep
        self._ended = Batcher(
            self._put_ended, identity=lambda ended: ended.identity, max_items=MAX_STREAMS
        )
        self._lookups = Batcher(self._find_claims, identity=lambda key: key)

    async def put_response(self, response: StoredResponse, retention: timedelta) -> None:
        await self._fetch(
            response.tenant_id,
            "put_response",
            response.id,
            response.status,
            response.body,
            response.input,
            response.previous_response_id,
            response.created_at,
            retention,
        )

    async def find_response(self, tenant_id: UUID, response_id: str) -> StoredResponse | None:
        rows = await self._fetch(tenant_id, "find_response", _plain(response_id))
        return _response(rows[0]) if rows else None

    async def lineage(
        self, tenant_id: UUID, response_id: str, *, max_length: int, retention: timedelta
    ) -> Sequence[StoredResponse]:
        rows = await self._fetch(tenant_id, "lineage", _plain(response_id), max_length, retention)
        return [_response(row) for row in rows]

    async def delete_response(self, tenant_id: UUID, response_id: str) -> bool:
        return bool(await self._fetch(tenant_id, "delete_response", _plain(response_id)))

    async def trim_responses(self, tenant_id: UUID, max_bytes: int) -> int:
        return len(await self._fetch(tenant_id, "trim_responses", max_bytes))

    async def put_stream(self, stream: ArchivedStream, retention: timedelta) -> None:
        # Until it is stored, the worker that has it answers.
        await self._ended.submit(_Ended(stream, retention), patience_s=PATIENCE_S)

    async def _put_ended(self, ended: Sequence[_Ended]) -> Sequence[Exception | None]:
        if len(ended) > 1:
            rows = ((one.stream.id, one.stream.tenant_id, *_stream_values(*one)) for one in ended)
            try:
                await self._connections.fetch(_SQL["put_stream_many"], [*zip(*rows, strict=True)])
            except InvalidValue:
                pass  # One of them is refused: each is sent alone, to find out which.
            else:
                return [None] * len(ended)
        return await send_each(self._put_one, ended)

    async def _put_one(self, ended: _Ended) -> None:
        stream = ended.stream
        await self._fetch(stream.tenant_id, "put_stream", stream.id, *_stream_values(*ended))

    async def find_stream(self, tenant_id: UUID, stream_id: str) -> ArchivedStream | None:
        rows = await self._fetch(tenant_id, "find_stream", _plain(stream_id))
        return ArchivedStream(**rows[0]) if rows else None

    async def delete_stream(self, tenant_id: UUID, stream_id: str) -> bool:
        return bool(await self._fetch(tenant_id, "delete_stream", _plain(stream_id)))

    async def trim_streams(self, tenant_id: UUID, max_bytes: int) -> int:
        return len(await self._fetch(tenant_id, "trim_streams", max_bytes))

    async def claim(
        self,
        tenant_id: UUID,
        key_hash: bytes,
        *,
        body_hash: bytes,
        answer_id: str,
        retention: timedelta,
    ) -> Claim:
        while True:
            if await self._fetch(tenant_id, "claim", key_hash, body_hash, answer_id, retention):
                return Claim(body_hash=body_hash, answer_id=answer_id)
            # In a loop, because the key may be released between the two statements.
            if claim := await self.find_claim(tenant_id, key_hash):
                return claim

    async def find_claim(self, tenant_id: UUID, key_hash: bytes) -> Claim | None:
        return await self._lookups.submit(_Key(key_hash, tenant_id))

    async def _find_claims(self, keys: Sequence[_Key]) -> Sequence[Claim | None]:
        rows = await self._connections.fetch(_SQL["find_claim_many"], [*zip(*keys, strict=True)])
        found = {
            _Key(row["key_hash"], row["tenant_id"]): Claim(
                body_hash=row["body_hash"], answer_id=row["answer_id"]
            )
            for row in rows
        }
        return [found.get(key) for key in keys]

    async def release_claim(self, tenant_id: UUID, key_hash: bytes, answer_id: str) -> bool:
        return bool(await self._fetch(tenant_id, "release_claim", key_hash, answer_id))

    async def trim_claims(self, tenant_id: UUID, max_rows: int) -> int:
        return len(await self._fetch(tenant_id, "trim_claims", max_rows))

    async def register_worker(self, worker_id: str, address: str, lease: timedelta) -> None:
        await self._connections.fetch(_SQL["register_worker"], (worker_id, address, lease))

    async def find_worker(self, worker_id: str) -> WorkerAddress | None:
        rows = await self._connections.fetch(_SQL["find_worker"], (_plain(worker_id),))
        return WorkerAddress(**rows[0]) if rows else None

    async def list_workers(self) -> Sequence[str]:
        return [row["id"] for row in await self._connections.fetch(_SQL["list_workers"], ())]

    async def forget_worker(self, worker_id: str) -> None:
        await self._connections.fetch(_SQL["forget_worker"], (worker_id,))

    async def delete_expired(self) -> int:
        return await self._upkeep.delete_expired()

    async def _fetch(self, tenant_id: UUID, name: str, *values: object) -> Sequence[Row]:
        query = _SQL[name]
        return await self._connections.fetch(
            query,
            (tenant_id, *values),
            tenant_id=tenant_id if query.access == "tenant" else None,  # or it enters by itself
            violations={
                f"{table}_tenant_id_fkey": TenantNotFound(tenant_id)
                for table in ("response", "ended_stream", "idempotency_key")
            },
        )


def _stream_values(stream: ArchivedStream, retention: timedelta) -> tuple[object, ...]:
    """The values of a stream, without its ids."""
    return (stream.kind, stream.num_dropped, stream.items, retention)


def _plain(name: str) -> str:
    """Clients may send any text as an id. PostgreSQL rejects NUL, which no id of ours contains."""
    return name.replace("\0", "")


def _response(row: Row) -> StoredResponse:
    return StoredResponse(**row)
