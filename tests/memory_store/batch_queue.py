"""A queue that takes no batches: those are tested with PostgreSQL, which does most of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tenants.batch_queue import Batch, BatchQueue, Line, NewBatch


class NoBatches(BatchQueue):
    def __init__(self) -> None:
        pass

    async def create(self, tenant_id: UUID, batch: NewBatch) -> Batch | None:
        return None

    async def find(self, tenant_id: UUID, batch_id: str) -> Batch | None:
        return None

    async def list(self, tenant_id: UUID, *, limit: int, after: str | None) -> Sequence[Batch]:
        return ()

    async def claim(
        self,
        owner: UUID,
        request_ids: Sequence[UUID],
        lease: timedelta,
        *,
        but_of: Sequence[UUID] = (),
    ) -> Sequence[Line]:
        return ()

    async def step(self, lease: timedelta) -> Batch | None:
        return None

    async def num_waiting(self) -> int:
        return 0
