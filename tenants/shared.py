"""What gateway workers share besides keys, limits and the ledger: the interface.

Responses that clients may come back to, the logs of ended streams, answers that an idempotency key
stands for, and where each worker can be reached. Rows expire. Their number and size are bounded by
the ``trim_*`` methods, which writers call now and then.
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
    """Its own input items as a JSON array; earlier responses hold theirs."""
    previous_response_id: str | None = None
    created_at: datetime


class ArchivedStream(msgspec.Struct, frozen=True, kw_only=True):
    """The log of a stream that has ended."""

    id: str
    tenant_id: UUID
    kind: StreamKind
    num_dropped: int
    """How many items before the first one kept were dropped."""
    items: bytes
    """Packed and unpacked by the caller."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What an idempotency key stands for."""

    body_hash: bytes
    """Hash of the first request that came with the key."""
    answer_id: str
    """Id of the stream that holds, or will hold, its answer."""


class SharedState(Protocol):
    """Every method may raise ``StoreUnavailable``. Rows of other tenants are never found."""

    async def put_response(self, response: StoredResponse, retention: timedelta) -> None:
        """Store, or replace by id. Raises ``TenantNotFound``."""

    async def find_response(self, tenant_id: UUID, response_id: str) -> StoredResponse | None:
        """None when there is none, or not any more."""

    async def lineage(
        self, tenant_id: UUID, response_id: str, *, max_length: int, retention: timedelta
    ) -> Sequence[StoredResponse]:
        """A response and those it continues, the oldest first; empty when it is unknown.

        Ends where an earlier one is gone, or after ``max_length`` responses; then the first one
        still has a ``previous_response_id``. All of them count as used: they are kept for
        ``retention`` from now on, give or take a day.
        """

    async def delete_response(self, tenant_id: UUID, response_id: str) -> bool:
        """False when there is none."""

    async def trim_responses(self, tenant_id: UUID, max_bytes: int) -> int:
        """Delete a tenant's oldest responses above so many bytes; how many went."""

    async def put_stream(self, stream: ArchivedStream, retention: timedelta) -> None:
        """Store, unless one with this id is there already."""

    async def find_stream(self, tenant_id: UUID, stream_id: str) -> ArchivedStream | None:
        """None when there is none, or not any more."""

    async def delete_stream(self, tenant_id: UUID, stream_id: str) -> bool:
        """False when there is none."""

    async def trim_streams(self, tenant_id: UUID, max_bytes: int) -> int:
        """Delete a tenant's oldest streams above so many bytes; how many went."""

    async def claim(
        self,
        tenant_id: UUID,
        key_hash: bytes,
        *,
        body_hash: bytes,
        answer_id: str,
        retention: timedelta,
    ) -> Claim:
        """Take an idempotency key, or learn who has it: it is ours if the result has our
        ``answer_id``."""

    async def release_claim(self, tenant_id: UUID, key_hash: bytes, answer_id: str) -> bool:
        """Release a key if it stands for ``answer_id``; False if it does not."""

    async def trim_claims(self, tenant_id: UUID, max_rows: int) -> int:
        """Release a tenant's oldest keys beyond ``max_rows``; returns how many."""

    async def register_worker(self, worker_id: str, address: str, lease: timedelta) -> None:
        """Register a worker's address, or renew its lease."""

    async def find_worker(self, worker_id: str) -> str | None:
        """The worker's address; None when it left, or did not renew its lease."""

    async def forget_worker(self, worker_id: str) -> None:
        """Remove a worker that leaves."""

    async def delete_expired(self) -> int:
        """Delete expired rows, at most a thousand of each kind; returns how many."""
