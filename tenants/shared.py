"""What gateway workers share beside keys, limits and the ledger: the port.

Responses that clients may come back to, the logs of streams that have ended, answers that an
idempotency key stands for, and where each worker can be reached. Rows have an end: retention in
time is theirs, retention in size is enforced by ``trim_*``, which who writes calls now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol
from uuid import UUID

import msgspec

StreamKind = Literal["sse", "ws", "answer"]
"""What the items of a stream are: server-sent events, WebSocket frames, or one whole answer."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of the Responses API, with what it was asked."""

    id: str
    tenant_id: UUID
    status: str
    body: bytes
    """The response object, as JSON."""
    input: bytes
    """Its own input items, as a JSON array: those of earlier responses are with them."""
    previous_response_id: str | None = None
    created_at: datetime


class ArchivedStream(msgspec.Struct, frozen=True, kw_only=True):
    """The log of a stream that has ended."""

    id: str
    tenant_id: UUID
    kind: StreamKind
    num_dropped: int
    """Items before the first one that is kept."""
    items: bytes
    """Packed by whoever writes and reads them."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What an idempotency key stands for."""

    body_hash: bytes
    """Of the first request that came with the key."""
    answer_id: str
    """Of the stream that holds, or will hold, its answer."""


class SharedState(Protocol):
    """Every method may raise ``StoreUnavailable``. Other tenants' rows are as if they were not."""

    async def put_response(self, response: StoredResponse, retention: timedelta) -> None:
        """Store, or replace by id. Raises ``TenantNotFound``."""

    async def find_response(self, tenant_id: UUID, response_id: str) -> StoredResponse | None:
        """None when there is none, or not any more."""

    async def lineage(
        self, tenant_id: UUID, response_id: str, *, max_length: int, retention: timedelta
    ) -> Sequence[StoredResponse]:
        """A response and those it continues, the oldest first; none when it is unknown.

        It ends where an earlier one is gone, or after ``max_length`` of them: then the first one
        has a ``previous_response_id``. All of them are in use: they are kept for ``retention``
        from now on, give or take a day.
        """

    async def delete_response(self, tenant_id: UUID, response_id: str) -> bool:
        """False when there is none."""

    async def trim_responses(self, tenant_id: UUID, max_bytes: int) -> int:
        """Delete a tenant's oldest responses above so many bytes; how many went."""

    async def put_stream(self, stream: ArchivedStream, retention: timedelta) -> None:
        """Store; the first one of an id stays."""

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
        """Take an idempotency key, or learn who has it: ours if ``answer_id`` is the same."""

    async def release_claim(self, tenant_id: UUID, key_hash: bytes, answer_id: str) -> bool:
        """Let a key go that stands for ``answer_id``; False when it does not."""

    async def trim_claims(self, tenant_id: UUID, max_rows: int) -> int:
        """Let go of a tenant's oldest keys above so many; how many went."""

    async def register_worker(self, worker_id: str, address: str, lease: timedelta) -> None:
        """Say, or go on saying, where a worker can be reached."""

    async def find_worker(self, worker_id: str) -> str | None:
        """Its address; None when it left, or did not renew its lease."""

    async def forget_worker(self, worker_id: str) -> None:
        """It has left."""

    async def delete_expired(self) -> int:
        """Delete what is past its end, a thousand rows of each kind at most; how many."""
