"""``SharedState`` in memory. It behaves as ``tenants.shared`` does."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from datetime import datetime, timedelta
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from tenants.errors import ObjectNotFound
from tenants.shared import (
    ArchivedStream,
    Claim,
    EngineRecord,
    Scaling,
    SharedState,
    StoredResponse,
    Verdict,
    WorkerAddress,
)

T = TypeVar("T")


class _Kept(NamedTuple, Generic[T]):
    value: T
    expires_at: datetime
    size: int


class _Table(Generic[T]):
    """Rows by (tenant, id), the oldest first."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._rows: dict[tuple[UUID, str | bytes], _Kept[T]] = {}

    def put(
        self, tenant_id: UUID, name: str | bytes, value: T, retention: timedelta, size: int = 1
    ) -> None:
        self._rows[tenant_id, name] = _Kept(value, self._now() + retention, size)

    def find(self, tenant_id: UUID, name: str | bytes) -> T | None:
        kept = self._rows.get((tenant_id, name))
        return kept.value if kept is not None and kept.expires_at > self._now() else None

    def keep(self, tenant_id: UUID, name: str | bytes, retention: timedelta) -> None:
        kept = self._rows[tenant_id, name]
        self._rows[tenant_id, name] = kept._replace(
            expires_at=max(kept.expires_at, self._now() + retention)
        )

    def delete(self, tenant_id: UUID, name: str | bytes) -> bool:
        found = self.find(tenant_id, name) is not None
        self._rows.pop((tenant_id, name), None)
        return found

    def trim(self, tenant_id: UUID, limit: int) -> int:
        total, gone = 0, []
        for key, kept in reversed(self._rows.items()):
            if key[0] == tenant_id:
                total += kept.size
                if total > limit:
                    gone.append(key)
        for key in gone:
            del self._rows[key]
        return len(gone)

    def delete_expired(self) -> int:
        now = self._now()
        gone = [key for key, kept in self._rows.items() if kept.expires_at <= now]
        for key in gone:
            del self._rows[key]
        return len(gone)


class MemoryShared(SharedState):
    """For the gateways of one process."""

    def __init__(
        self,
        now: Callable[[], datetime],
        tenants: Container[UUID],
        delete_conversations: Callable[[int | None], int],
        delete_chats: Callable[[], int],
    ) -> None:
        self._now = now
        self._tenants = tenants
        self._delete_conversations = delete_conversations
        self._delete_chats = delete_chats
        self._responses = _Table[StoredResponse](now)
        self._streams = _Table[ArchivedStream](now)
        self._claims = _Table[Claim](now)
        self._workers: dict[str, tuple[str, datetime]] = {}
        self._engines: dict[str, tuple[EngineRecord, datetime]] = {}
        self._wanted: dict[str, datetime] = {}
        self._leaders: dict[str, tuple[str, datetime]] = {}
        self._decided: dict[str, int] = {}

    async def register_engine(self, engine: EngineRecord, lease: timedelta) -> Verdict:
        known, now = self._engines.get(engine.id), self._now()
        is_drained = False
        if known is not None:
            if known[0].epoch > engine.epoch or (
                known[0].epoch == engine.epoch and known[0].state == "lost"
            ):
                return "epoch over"
            is_drained = known[0].is_drained
        if known is None or known[0].epoch < engine.epoch:
            for other, expires_at in self._engines.values():
                is_other = other.model == engine.model and other.id != engine.id
                lives = other.state != "lost" and expires_at > now
                if is_other and lives and other.config_hash != engine.config_hash:
                    return "other weights"
        same = known is not None and known[0].epoch == engine.epoch
        started_at = known[0].started_at if same and known is not None else now
        kept = msgspec.structs.replace(
            engine,
            is_drained=is_drained,
            is_to_restart=same and known is not None and known[0].is_to_restart,
            started_at=started_at,
        )
        self._engines[engine.id] = kept, now + lease
        return "ok"

    async def list_engines(self) -> Sequence[EngineRecord]:
        now = self._now()
        return [
            msgspec.structs.replace(engine, is_leased=expires_at > now)
            for _, (engine, expires_at) in sorted(self._engines.items())
        ]

    async def lose_engine(self, engine_id: str, epoch: int) -> bool:
        engine, expires_at = self._engines[engine_id]
        if engine.epoch != epoch or expires_at > self._now():
            return False
        self._engines[engine_id] = msgspec.structs.replace(engine, state="lost"), expires_at
        return True

    async def drain_engine(self, engine_id: str, *, is_drained: bool) -> bool:
        if engine_id not in self._engines:
            return False
        engine, expires_at = self._engines[engine_id]
        kept = msgspec.structs.replace(engine, is_drained=is_drained)
        self._engines[engine_id] = kept, expires_at
        return True

    async def restart_engine(self, engine_id: str, epoch: int) -> bool:
        engine, expires_at = self._engines.get(engine_id, (None, None))
        if engine is None or expires_at is None:
            return False
        if engine.epoch != epoch:
            return False
        self._engines[engine_id] = msgspec.structs.replace(engine, is_to_restart=True), expires_at
        return True

    async def forget_engine(self, engine_id: str, epoch: int) -> None:
        if engine_id in self._engines and self._engines[engine_id][0].epoch == epoch:
            del self._engines[engine_id]

    async def want_model(self, model: str) -> bool:
        self._wanted[model] = self._now()
        return model in self._leaders and self._leaders[model][1] > self._now()

    async def lead_model(
        self, model: str, controller: str, lease: timedelta, num_replicas: int | None = None
    ) -> Scaling | None:
        now = self._now()
        if model in self._leaders:
            leader, expires_at = self._leaders[model]
            if leader != controller and expires_at > now:
                return None
        self._leaders[model] = controller, now + lease
        if num_replicas is not None:
            self._decided[model] = num_replicas
        wanted_at = self._wanted.get(model)
        wanted_s = None if wanted_at is None else (now - wanted_at).total_seconds()
        return Scaling(wanted_s=wanted_s, num_replicas=self._decided.get(model))

    async def put_response(self, response: StoredResponse, retention: timedelta) -> None:
        self._check_tenant(response.tenant_id)
        size = len(response.body) + len(response.input)
        self._responses.put(response.tenant_id, response.id, response, retention, size)

    async def find_response(self, tenant_id: UUID, response_id: str) -> StoredResponse | None:
        return self._responses.find(tenant_id, response_id)

    async def lineage(
        self,
        tenant_id: UUID,
        response_id: str,
        *,
        max_length: int,
        max_bytes: int,
        retention: timedelta,
    ) -> Sequence[StoredResponse]:
        found: list[StoredResponse] = []
        wanted: str | None = response_id
        size = 0
        while wanted is not None and len(found) < max_length and size <= max_bytes:
            response = self._responses.find(tenant_id, wanted)
            if response is None:
                break
            self._responses.keep(tenant_id, wanted, retention)
            found.append(response)
            size += len(response.body) + len(response.input)
            wanted = response.previous_response_id
        return found[::-1]

    async def delete_response(self, tenant_id: UUID, response_id: str) -> bool:
        return self._responses.delete(tenant_id, response_id)

    async def trim_responses(self, tenant_id: UUID, max_bytes: int) -> int:
        return self._responses.trim(tenant_id, max_bytes)

    async def put_stream(self, stream: ArchivedStream, retention: timedelta) -> None:
        self._check_tenant(stream.tenant_id)
        if self._streams.find(stream.tenant_id, stream.id) is None:
            size = len(stream.items)
            self._streams.put(stream.tenant_id, stream.id, stream, retention, size)

    async def find_stream(self, tenant_id: UUID, stream_id: str) -> ArchivedStream | None:
        return self._streams.find(tenant_id, stream_id)

    async def delete_stream(self, tenant_id: UUID, stream_id: str) -> bool:
        return self._streams.delete(tenant_id, stream_id)

    async def trim_streams(self, tenant_id: UUID, max_bytes: int) -> int:
        return self._streams.trim(tenant_id, max_bytes)

    async def claim(
        self,
        tenant_id: UUID,
        key_hash: bytes,
        *,
        body_hash: bytes,
        answer_id: str,
        retention: timedelta,
    ) -> Claim:
        self._check_tenant(tenant_id)
        claim = self._claims.find(tenant_id, key_hash)
        if claim is None:
            claim = Claim(body_hash=body_hash, answer_id=answer_id)
            self._claims.put(tenant_id, key_hash, claim, retention)
        return claim

    async def find_claim(self, tenant_id: UUID, key_hash: bytes) -> Claim | None:
        return self._claims.find(tenant_id, key_hash)

    async def release_claim(self, tenant_id: UUID, key_hash: bytes, answer_id: str) -> bool:
        claim = self._claims.find(tenant_id, key_hash)
        if claim is None or claim.answer_id != answer_id:
            return False
        return self._claims.delete(tenant_id, key_hash)

    async def trim_claims(self, tenant_id: UUID, max_rows: int) -> int:
        return self._claims.trim(tenant_id, max_rows)

    async def register_worker(self, worker_id: str, address: str, lease: timedelta) -> None:
        self._workers[worker_id] = (address, self._now() + lease)

    async def find_worker(self, worker_id: str) -> WorkerAddress | None:
        if worker_id not in self._workers:
            return None
        address, expires_at = self._workers[worker_id]
        return WorkerAddress(address=address, is_leased=expires_at > self._now())

    async def list_workers(self) -> Sequence[str]:
        now = self._now()
        return sorted(key for key, (_, expires_at) in self._workers.items() if expires_at > now)

    def follow_clock(self, lease: timedelta) -> None:
        """As the last part of ``quota_follow_clock``."""
        latest = self._now() + lease
        for name, (address, expires_at) in self._workers.items():
            if expires_at > latest + timedelta(minutes=1):
                self._workers[name] = (address, latest)

    async def forget_worker(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)

    async def delete_expired(self, conversation_days: int | None = None) -> int:
        since = self._now() - timedelta(days=1)
        gone = [name for name, (_, expires_at) in self._workers.items() if expires_at <= since]
        for name in gone:
            del self._workers[name]
        tables = (self._responses, self._streams, self._claims)
        also = self._delete_conversations(conversation_days) + self._delete_chats()
        return len(gone) + also + sum(table.delete_expired() for table in tables)

    def _check_tenant(self, tenant_id: UUID) -> None:
        if tenant_id not in self._tenants:
            raise ObjectNotFound("tenant", tenant_id)
