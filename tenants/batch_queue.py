"""Batches of requests, whose lines the workers of all hosts run when nobody else wants the engines.

    validating ──► in_progress ──► finalizing ──► completed, expired
        │              └──► cancelling ──► cancelled
        └──► failed

A worker leases lines, and a batch to validate or end it. Each lease has a number, ``attempts``, and
only who had the last one may write. So a line has one result, which is written together with its
row in the ledger, whichever workers die or stand still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from tenants import queries
from tenants.connections import Connections, Row
from tenants.errors import ObjectNotFound, TenantsError
from tenants.files import CHUNK_BYTES
from tenants.rows import event_values
from tenants.types import UsageEvent

BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
MAX_OPEN = 100
"""Batches of one tenant that have not ended."""

LineKey = tuple[UUID, str, int, int]
"""Its tenant, batch, number and attempt."""

_SQL = queries.load()
_NO_EVENT = (None,) * 11


class Batch(NamedTuple):
    tenant_id: UUID
    id: str
    public_id: str
    """That of the key which made it, and which its lines run with."""
    endpoint: str
    input_file_id: str
    window: str
    metadata: bytes
    outputs_last: timedelta
    status: BatchStatus
    ends_as: BatchStatus
    errors: bytes
    """As JSON."""
    output_file_id: str | None
    error_file_id: str | None
    num_total: int
    num_completed: int
    num_failed: int
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    cancelling_at: datetime | None
    ended_at: datetime | None
    attempts: int
    free_at: datetime


class NewBatch(NamedTuple):
    id: str
    public_id: str
    endpoint: str
    input_file_id: str
    window: str
    lasts: timedelta
    metadata: bytes
    outputs_last: timedelta


class Line(NamedTuple):
    """A line that a worker has leased."""

    tenant_id: UUID
    batch_id: str
    number: int
    custom_id: str
    start: int
    length: int
    request_id: UUID
    """Of this attempt."""
    attempts: int
    num_lost: int
    endpoint: str
    public_id: str
    input_file_id: str

    @property
    def key(self) -> LineKey:
        return self.tenant_id, self.batch_id, self.number, self.attempts


class NewLine(NamedTuple):
    number: int
    custom_id: str
    start: int
    length: int
    result: bytes | None
    """What is wrong with it, if it cannot run."""


class OpenLine(NamedTuple):
    number: int
    custom_id: str
    attempts: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a line."""

    tenant_id: UUID
    batch_id: str
    number: int
    attempts: int
    data: bytes
    """Its line in the output or the error file."""
    is_failed: bool
    event: UsageEvent | None
    """What is billed; None: nothing."""


class BatchQueue:
    """Uses the connections of a ``Store``, which closes them. Every method may raise
    ``StoreUnavailable``."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    # -- for the tenant

    async def create(self, tenant_id: UUID, batch: NewBatch) -> Batch | None:
        """A new batch; None if the file is gone, or the tenant has ``MAX_OPEN``. Raises
        ``ObjectNotFound`` for a tenant that there is not."""
        fkey: Mapping[str, TenantsError] = {
            "batch_tenant_id_fkey": ObjectNotFound("tenant", tenant_id)
        }
        rows = await self._connections.fetch_in_turn(
            _SQL["create_batch"],
            (tenant_id, *batch, MAX_OPEN),
            tenant_id=tenant_id,
            violations=fkey,
        )
        return _one(rows)

    async def find(self, tenant_id: UUID, batch_id: str) -> Batch | None:
        return _one(await self._fetch(tenant_id, "find_batch", _plain(batch_id)))

    async def list(self, tenant_id: UUID, *, limit: int, after: str | None) -> Sequence[Batch]:
        """Batches, the newest first. after: the id of the one before the page."""
        behind = None if after is None else _plain(after)
        rows = await self._fetch(tenant_id, "list_batches", behind, limit)
        return [_batch(row) for row in rows]

    async def cancel(self, tenant_id: UUID, batch_id: str) -> Batch | None:
        """Cancel a batch; None if there is none, or it ends already."""
        return _one(await self._fetch(tenant_id, "cancel_batch", _plain(batch_id)))

    # -- lines, for workers

    async def claim(
        self,
        owner: UUID,
        request_ids: Sequence[UUID],
        lease: timedelta,
        *,
        but_of: Sequence[UUID] = (),
    ) -> Sequence[Line]:
        """Lease lines, each with one of these ids; fewer if fewer wait. but_of: tenants that get
        none."""
        values = (owner, list(request_ids), lease, list(but_of))
        rows = await self._connections.fetch(_SQL["claim_lines"], values)
        return [Line(**row) for row in rows]

    async def renew(
        self, owner: UUID, lines: Sequence[Line], lease: timedelta
    ) -> Mapping[LineKey, BatchStatus]:
        """Renew leases. Returns how the batch of each line is that the owner still has."""
        columns = zip(*(one.key for one in lines), strict=True)
        rows = await self._connections.fetch(_SQL["renew_lines"], (owner, *columns, lease))
        return {tuple(row.values())[:4]: row["status"] for row in rows}

    async def give_back(self, line: Line, wait: timedelta) -> None:
        """Let a line be tried again after ``wait``."""
        values = (line.batch_id, line.number, line.attempts, wait)
        await self._fetch(line.tenant_id, "give_back_line", *values)

    async def finish(self, results: Sequence[Result]) -> Sequence[bool]:
        """Keep results and bill what they used, all of it or nothing. Says for each whether it was
        kept; it is not if another worker has leased the line since."""
        rows = [
            (
                *(one.tenant_id, one.batch_id, one.number, one.attempts, one.data, one.is_failed),
                *_event_columns(one.event),
            )
            for one in results
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        (row,) = await self._connections.fetch(_SQL["finish_lines"], columns)
        kept = set(row["kept"])
        return [place in kept for place in range(1, len(results) + 1)]

    async def read(self, line: Line) -> bytes:
        """The text of a line; empty if its file is gone."""
        values = (line.input_file_id, line.start, line.length, CHUNK_BYTES)
        rows = await self._fetch(line.tenant_id, "read_line", *values)
        return b"".join(row["data"] for row in rows)

    # -- batches, for workers

    async def step(self, lease: timedelta) -> Batch | None:
        """Lease a batch that is to be validated or ended. One whose time has ended is found by the
        second look from then on."""
        return _one(await self._connections.fetch(_SQL["step_batch"], (lease,)))

    async def keep(self, batch: Batch, lease: timedelta) -> bool:
        """Renew the lease of a batch; False if another worker has it."""
        return bool(await self._of(batch, "keep_batch", lease))

    async def put_lines(self, batch: Batch, lines: Sequence[NewLine]) -> None:
        columns = [list(column) for column in zip(*lines, strict=True)]
        await self._of(batch, "put_lines", *columns)

    async def begin(self, batch: Batch, num_total: int, num_failed: int, errors: bytes) -> None:
        """All lines of a batch are there."""
        await self._of(batch, "begin_batch", num_total, num_failed, errors)

    async def fail(self, batch: Batch, errors: bytes) -> None:
        """End a batch of which no line can run."""
        await self._of(batch, "fail_batch", errors)

    async def open_lines(self, batch: Batch, limit: int) -> Sequence[OpenLine]:
        """Lines that have no result, of a batch that ends."""
        rows = await self._fetch(batch.tenant_id, "open_lines", batch.id, limit)
        return [OpenLine(**row) for row in rows]

    async def pack(self, batch: Batch, file_id: str, *, is_failed: bool, after: int) -> int | None:
        """Append results behind a line to a file; returns the last one's number, None at the
        end."""
        (row,) = await self._of(batch, "pack_lines", file_id, is_failed, after)
        last: int | None = row["last"]
        return last

    async def end(self, batch: Batch, output_id: str, error_id: str) -> bool:
        """End a batch with these files, which nobody finds before; False if another worker has
        it."""
        (row,) = await self._of(batch, "end_batch", output_id, error_id)
        ended: bool = row["ended"]
        return ended

    async def num_waiting(self) -> int:
        """Lines of all tenants that have no result yet."""
        (row,) = await self._connections.fetch(_SQL["count_waiting_lines"], ())
        waiting: int = row["waiting"]
        return waiting

    async def _of(self, batch: Batch, name: str, *values: object) -> Sequence[Row]:
        return await self._fetch(batch.tenant_id, name, batch.id, batch.attempts, *values)

    async def _fetch(self, tenant_id: UUID, name: str, *values: object) -> Sequence[Row]:
        return await self._connections.fetch_in_turn(
            _SQL[name], (tenant_id, *values), tenant_id=tenant_id
        )


def _event_columns(event: UsageEvent | None) -> tuple[object, ...]:
    """As ``batch_finish`` takes them: the tenant is the line's."""
    if event is None:
        return _NO_EVENT
    request_id, _, *rest = event_values(event)
    return (request_id, *rest)


def _one(rows: Sequence[Row]) -> Batch | None:
    return _batch(rows[0]) if rows else None


def _batch(row: Row) -> Batch:
    return Batch(**row)


def _plain(name: str) -> str:
    """Clients may send any text as an id. PostgreSQL rejects NUL, which no id of ours contains."""
    return name.replace("\0", "")
