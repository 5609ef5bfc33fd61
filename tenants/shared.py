"""The interface to other state that gateway workers share: responses, streams, claims, addresses.

That is: stored responses, the logs of ended streams, the answers that idempotency keys stand for,
and the address of each worker. Rows expire. The ``trim_*`` methods, which writers call now and
then, bound their number and size.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol
from uuid import UUID

import msgspec

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


class SharedState(Protocol):
    """Every method may raise ``StoreUnavailable``. Rows of other tenants are never found."""

    async def put_response(self, response: StoredResponse, retention: timedelta) -> None:
        """Store a response, or replace the one with its id. Raises ``TenantNotFound``."""

    async def find_response(self, tenant_id: UUID, response_id: str) -> StoredResponse | None:
        """A stored response; None if there is none, or it has expired."""

    async def lineage(
        self, tenant_id: UUID, response_id: str, *, max_length: int, retention: timedelta
    ) -> Sequence[StoredResponse]:
        """A response and those that it continues, the oldest first; empty if it is unknown.

        If an earlier response is gone, or there are more than ``max_length``, the first one
        returned has a ``previous_response_id``. All of them are kept for ``retention`` from now on,
        give or take a day.
        """

    async def delete_response(self, tenant_id: UUID, response_id: str) -> bool:
        """Delete a response; False if there is none."""

    async def trim_responses(self, tenant_id: UUID, max_bytes: int) -> int:
        """Delete a tenant's oldest responses beyond ``max_bytes`` in all; returns how many."""

    async def put_stream(self, stream: ArchivedStream, retention: timedelta) -> None:
        """Store a stream, unless there is one with its id."""

    async def find_stream(self, tenant_id: UUID, stream_id: str) -> ArchivedStream | None:
        """A stored stream; None if there is none, or it has expired."""

    async def delete_stream(self, tenant_id: UUID, stream_id: str) -> bool:
        """Delete a stream; False if there is none."""

    async def trim_streams(self, tenant_id: UUID, max_bytes: int) -> int:
        """Delete a tenant's oldest streams beyond ``max_bytes`` in all; returns how many."""

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

    async def find_claim(self, tenant_id: UUID, key_hash: bytes) -> Claim | None:
        """The claim on an idempotency key; None if nobody has it, or its time is over."""

    async def release_claim(self, tenant_id: UUID, key_hash: bytes, answer_id: str) -> bool:
        """Release a key if it stands for ``answer_id``; False if it does not."""

    async def trim_claims(self, tenant_id: UUID, max_rows: int) -> int:
        """Release a tenant's oldest keys beyond ``max_rows``; returns how many."""

    async def register_worker(self, worker_id: str, address: str, lease: timedelta) -> None:
        """Register a worker's address, or renew its lease."""

    async def find_worker(self, worker_id: str) -> WorkerAddress | None:
        """The worker's address; None if it has left, or its lease ran out long ago."""

    async def list_workers(self) -> Sequence[str]:
        """The ids of all workers whose lease runs, in order."""

    async def forget_worker(self, worker_id: str) -> None:
        """Remove a worker that leaves."""

    async def delete_expired(self) -> int:
        """Delete expired rows, at most a thousand of each kind; returns how many. Workers are
        deleted a day later."""
