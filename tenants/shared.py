"""Other state that gateway workers share: responses, streams, claims, addresses.

That is: stored responses, the logs of ended streams, the answers that idempotency keys stand for,
and the address of each worker. Rows expire. The ``trim_*`` methods, which writers call now and
then, bound their number and size.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from tenants import queries
from tenants.batches import Batcher, send_each
from tenants.connections import Connections, Row
from tenants.errors import InvalidValue, ObjectNotFound
from tenants.postgres_upkeep import PostgresUpkeep

StreamKind = Literal["sse", "ws", "answer"]
"""What a stream consists of: server-sent events, WebSocket frames, or one whole answer."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of the Responses API, with its input."""

    id: str
    tenant_id: UUID
    status: str
    body: bytes
    """The response object, as JSON."""
    input: bytes
    """Its own input items as a JSON array, without those of earlier responses."""
    previous_response_id: str | None = None
    created_at: datetime


class ArchivedStream(msgspec.Struct, frozen=True, kw_only=True):
    """The log of a stream that has ended."""

    id: str
    tenant_id: UUID
    kind: StreamKind
    num_dropped: int
    """The number of items before the first one that is kept."""
    items: bytes
    """In a format of the caller's."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The request and the answer that an idempotency key stands for."""

    body_hash: bytes
    """Hash of the first request that came with the key."""
    answer_id: str
    """Id of the stream that has, or will have, its answer."""


class WorkerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker listens."""

    address: str
    is_leased: bool
    """Whether its lease runs. If not, it is dead, or the store's clock was set forward."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What a controller of replicas has to know of a model."""

    wanted_s: float | None
    """How long ago a gateway last had a request that no engine could take."""
    num_replicas: int | None
    """What was decided last, by this controller or the one before."""


Verdict = Literal["ok", "epoch over", "other weights"]


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as the registry has it."""

    id: str
    model: str
    """As clients call it."""
    config_hash: str
    """Of the weights, and of the settings on which outputs depend."""
    text_hash: str
    """Of the tokenizer: of gateways and engines it must be the same."""
    address: str | None = None
    """Where gateways of other hosts reach it; None: it serves its own host only."""
    public_key: str | None = None
    """The CURVE key that it shows there."""
    protocol: int
    """The version of the messages that it speaks."""
    version: str
    """Of the software."""
    capacity: int
    """The most requests that it runs at once."""
    epoch: int
    """A later one for each start, and whenever it returns after having been given up."""
    state: Literal["loading", "ready", "lost"]
    """``lost``: its lease was over, and it was given up."""
    is_drained: bool = False
    is_to_restart: bool = False
    """Whether its host is to start it anew."""
    num_running: int = 0
    num_waiting: int = 0
    num_admitted: int = 0
    """Requests that it began to run, since it was started."""
    queue_time_s: float = 0.0
    """How long these waited for that, in sum."""
    node: str | None = None
    """Where it runs, for operators."""
    started_at: datetime | None = None
    is_leased: bool = True

    @property
    def condition(self) -> Literal["loading", "ready", "drained", "lost"]:
        """What an operator wants to know."""
        if self.state == "lost" or not self.is_leased:
            return "lost"
        return "drained" if self.state == "ready" and self.is_drained else self.state


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


class SharedState:
    """Uses the connections of a ``Store``, which closes them. Every method may raise
    ``StoreUnavailable``. Rows of other tenants are never found."""

    def __init__(self, connections: Connections, upkeep: PostgresUpkeep) -> None:
        self._connections = connections
        self._upkeep = upkeep
        self._ended = Batcher(
            self._put_ended, identity=lambda ended: ended.identity, max_items=MAX_STREAMS
        )
        self._lookups = Batcher(self._find_claims, identity=lambda key: key)

    async def put_response(self, response: StoredResponse, retention: timedelta) -> None:
        """Store a response, or replace the one with its id. Raises ``ObjectNotFound``."""
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
        """A stored response; None if there is none, or it has expired."""
        rows = await self._fetch(tenant_id, "find_response", _plain(response_id))
        return _response(rows[0]) if rows else None

    async def lineage(
        self,
        tenant_id: UUID,
        response_id: str,
        *,
        max_length: int,
        max_bytes: int,
        retention: timedelta,
    ) -> Sequence[StoredResponse]:
        """A response and those that it continues, the oldest first; empty if it is unknown.

        If an earlier response is gone, or there are more than ``max_length``, the first one
        returned has a ``previous_response_id``; so it has if they have more than ``max_bytes``,
        and then those returned do, too. All of them are kept for ``retention`` from now on, give or
        take a day.
        """
        values = (_plain(response_id), max_length, retention, max_bytes)
        rows = await self._fetch(tenant_id, "lineage", *values)
        return [_response(row) for row in rows]

    async def delete_response(self, tenant_id: UUID, response_id: str) -> bool:
        """Delete a response; False if there is none."""
        return bool(await self._fetch(tenant_id, "delete_response", _plain(response_id)))

    async def trim_responses(self, tenant_id: UUID, max_bytes: int) -> int:
        """Delete a tenant's oldest responses beyond ``max_bytes`` in all; returns how many."""
        return len(await self._fetch(tenant_id, "trim_responses", max_bytes))

    async def put_stream(self, stream: ArchivedStream, retention: timedelta) -> None:
        # Until it is stored, the worker that has it answers.
        """Store a stream, unless there is one with its id."""
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
        """A stored stream; None if there is none, or it has expired."""
        rows = await self._fetch(tenant_id, "find_stream", _plain(stream_id))
        return ArchivedStream(**rows[0]) if rows else None

    async def delete_stream(self, tenant_id: UUID, stream_id: str) -> bool:
        """Delete a stream; False if there is none."""
        return bool(await self._fetch(tenant_id, "delete_stream", _plain(stream_id)))

    async def trim_streams(self, tenant_id: UUID, max_bytes: int) -> int:
        """Delete a tenant's oldest streams beyond ``max_bytes`` in all; returns how many."""
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
        """Claim an idempotency key. Returns the claim that holds: the caller's, if its
        ``answer_id`` is the caller's, or an earlier one."""
        while True:
            if await self._fetch(tenant_id, "claim", key_hash, body_hash, answer_id, retention):
                return Claim(body_hash=body_hash, answer_id=answer_id)
            # In a loop, because the key may be released between the two statements.
            if claim := await self.find_claim(tenant_id, key_hash):
                return claim

    async def find_claim(self, tenant_id: UUID, key_hash: bytes) -> Claim | None:
        """The claim on an idempotency key; None if nobody has it, or its time is over."""
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
        """Release a key if it stands for ``answer_id``; False if it does not."""
        return bool(await self._fetch(tenant_id, "release_claim", key_hash, answer_id))

    async def trim_claims(self, tenant_id: UUID, max_rows: int) -> int:
        """Release a tenant's oldest keys beyond ``max_rows``; returns how many."""
        return len(await self._fetch(tenant_id, "trim_claims", max_rows))

    async def register_worker(self, worker_id: str, address: str, lease: timedelta) -> None:
        """Register a worker's address, or renew its lease."""
        await self._connections.fetch(_SQL["register_worker"], (worker_id, address, lease))

    async def find_worker(self, worker_id: str) -> WorkerAddress | None:
        """The worker's address; None if it has left, or its lease ran out long ago."""
        rows = await self._connections.fetch(_SQL["find_worker"], (_plain(worker_id),))
        return WorkerAddress(**rows[0]) if rows else None

    async def list_workers(self) -> Sequence[str]:
        """The ids of all workers whose lease runs, in order."""
        return [row["id"] for row in await self._connections.fetch(_SQL["list_workers"], ())]

    async def forget_worker(self, worker_id: str) -> None:
        """Remove a worker that leaves."""
        await self._connections.fetch(_SQL["forget_worker"], (worker_id,))

    async def register_engine(self, engine: EngineRecord, lease: timedelta) -> Verdict:
        """Register an engine, or renew its lease. ``epoch over``: it was given up, and must come
        back with a later epoch; ``other weights``: there are engines of its model with another
        ``config_hash``."""
        fields = (
            *(engine.id, engine.model, engine.config_hash, engine.text_hash, engine.address),
            *(engine.public_key, engine.protocol, engine.version, engine.capacity, engine.epoch),
            *(engine.state, engine.num_running, engine.num_waiting, lease),
            *(engine.node, engine.num_admitted, engine.queue_time_s),
        )
        rows = await self._connections.fetch(_SQL["register_engine"], fields)
        verdict: Verdict = rows[0]["verdict"]
        return verdict

    async def list_engines(self) -> Sequence[EngineRecord]:
        """All engines that are registered, in the order of their ids."""
        rows = await self._connections.fetch(_SQL["list_engines"], ())
        return [EngineRecord(**row) for row in rows]

    async def lose_engine(self, engine_id: str, epoch: int) -> bool:
        """Give up an engine whose lease is over; False if it has renewed it."""
        return bool(await self._connections.fetch(_SQL["lose_engine"], (engine_id, epoch)))

    async def drain_engine(self, engine_id: str, *, is_drained: bool) -> bool:
        """Have gateways send an engine no more requests, or send it some again; False if there is
        none of that id."""
        row = (_plain(engine_id), is_drained)
        return bool(await self._connections.fetch(_SQL["drain_engine"], row))

    async def restart_engine(self, engine_id: str, epoch: int) -> bool:
        """Have the gateway whose own it is start an engine anew, or the controller that has placed
        it; False if there is none in this epoch."""
        return bool(await self._connections.fetch(_SQL["restart_engine"], (engine_id, epoch)))

    async def forget_engine(self, engine_id: str, epoch: int) -> None:
        """Remove an engine that leaves."""
        await self._connections.fetch(_SQL["forget_engine"], (engine_id, epoch))

    async def want_model(self, model: str) -> bool:
        """Note that a request for this model came that no engine can take. Returns whether anybody
        is there to start one."""
        rows = await self._connections.fetch(_SQL["want_model"], (model,))
        is_led: bool = rows[0]["is_led"]
        return is_led

    async def lead_model(
        self, model: str, controller: str, lease: timedelta, num_replicas: int | None = None
    ) -> Scaling | None:
        """Decide about a model's replicas for so long, as ``controller``; None if another one does.
        ``num_replicas``: the decision, for the next one who leads."""
        row = (model, controller, lease, num_replicas)
        rows = await self._connections.fetch(_SQL["lead_model"], row)
        return Scaling(**rows[0]) if rows else None

    async def delete_expired(self, conversation_days: int | None = None) -> int:
        """Delete expired rows, at most a thousand of each kind, and what deleted tenants have left;
        returns how many. Workers and engines are deleted a day later. conversation_days: how long
        conversations of tenants that say nothing else are kept; None: for ever."""
        return await self._upkeep.delete_expired(conversation_days)

    async def _fetch(self, tenant_id: UUID, name: str, *values: object) -> Sequence[Row]:
        query = _SQL[name]
        violations = {
            f"{table}_tenant_id_fkey": ObjectNotFound("tenant", tenant_id)
            for table in ("response", "ended_stream", "idempotency_key")
        }
        values = (tenant_id, *values)
        if query.access != "tenant":  # It enters by itself.
            return await self._connections.fetch(query, values, violations=violations)
        return await self._connections.fetch_in_turn(
            query, values, tenant_id=tenant_id, violations=violations
        )


def _stream_values(stream: ArchivedStream, retention: timedelta) -> tuple[object, ...]:
    """The values of a stream, without its ids."""
    return (stream.kind, stream.num_dropped, stream.items, retention)


def _plain(name: str) -> str:
    """Clients may send any text as an id. PostgreSQL rejects NUL, which no id of ours contains."""
    return name.replace("\0", "")


def _response(row: Row) -> StoredResponse:
    return StoredResponse(**row)
