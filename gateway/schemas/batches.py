"""OpenAI's Batch API."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.schemas.shown import IdList, Shown
from tenants.batch_queue import BatchStatus


class OutputExpiry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    anchor: str
    seconds: int


class CreateBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[dict[str, Any]]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    completed: int
    failed: int


class BatchObject(Shown, frozen=True, kw_only=True):
    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(IdList[BatchObject], frozen=True, kw_only=True):
    """Of a tenant."""
