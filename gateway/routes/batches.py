"""``/v1/batches``: create, list, retrieve and cancel.

Another tenant's batch is a 404, as is an unknown one.
"""

from __future__ import annotations

import re
from datetime import timedelta
from operator import attrgetter

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.field_checks import check_metadata
from gateway.batches.files import BATCH_FILES_LAST, lasting
from gateway.errors import Conflict, InvalidRequestError, NotFound, quoted
from gateway.routes.http import json_answer
from gateway.routes.paging import id_listing, id_page
from gateway.schemas.batches import (
    BatchErrors,
    BatchList,
    BatchObject,
    CreateBatch,
    RequestCounts,
)
from gateway.schemas.shown import seconds
from gateway.services import Services
from tenants.access import require_scope
from tenants.batch_queue import MAX_OPEN, Batch, BatchStatus, NewBatch
from tenants.request_ids import new_request_id

MAX_HOURS = 7 * 24
_WINDOW = re.compile(r"([1-9]\d{0,2})h")


async def create(services: Services, request: Request, body: CreateBatch) -> Response:
    principal = context.principal_of(request.scope)
    operation = services.batches.operations.get(body.endpoint)
    if operation is None:
        known = ", ".join(services.batches.operations)
        raise InvalidRequestError(f"Must be one of {known}.", param="endpoint")
    if operation.scope is not None:
        require_scope(principal.key, operation.scope)
    check_metadata(body.metadata)
    expiry, tenant_id = body.output_expires_after, principal.tenant.id
    input_file = await services.store.files.find(tenant_id, body.input_file_id)
    if input_file is None or input_file.purpose != "batch":
        raise InvalidRequestError(
            f"There is no file {quoted(body.input_file_id)} of the purpose batch.",
            param="input_file_id",
        )
    made = await services.store.batch_queue.create(
        tenant_id,
        NewBatch(
            id=f"batch_{new_request_id().hex}",
            public_id=principal.key.public_id,
            endpoint=body.endpoint,
            input_file_id=input_file.id,
            window=body.completion_window,
            lasts=_window(body.completion_window),
            metadata=msgspec.json.encode(body.metadata),
            outputs_last=(
                BATCH_FILES_LAST
                if expiry is None
                else lasting(expiry.anchor, expiry.seconds, "output_expires_after")
            ),
        ),
    )
    if made is None:
        raise Conflict(
            f"{MAX_OPEN} batches of your tenant have not ended yet.", code="too_many_batches"
        )
    services.batches.wake()
    return json_answer(_shown(made))


async def list_all(services: Services, request: Request) -> Response:
    tenant_id = context.principal_of(request.scope).tenant.id
    page = id_page(request)
    queue = services.store.batch_queue
    found = await queue.list(tenant_id, limit=page.fetched, after=page.after)
    return id_listing(BatchList, found, page, _shown, attrgetter("id"))


async def retrieve(services: Services, request: Request) -> Response:
    return json_answer(_shown(await _find(services, request)))


async def cancel(services: Services, request: Request) -> Response:
    batch = await _find(services, request)
    cancelled = await services.store.batch_queue.cancel(batch.tenant_id, batch.id)
    if cancelled is not None:
        services.batches.wake()
        return json_answer(_shown(cancelled))
    batch = await _find(services, request)
    if batch.status not in ("cancelling", "cancelled"):
        raise Conflict(f"The batch is {batch.status} already.", code="batch_has_ended")
    return json_answer(_shown(batch))


async def _find(services: Services, request: Request) -> Batch:
    tenant_id = context.principal_of(request.scope).tenant.id
    batch_id: str = request.path_params["batch_id"]
    found = await services.store.batch_queue.find(tenant_id, batch_id)
    if found is None:
        raise NotFound(f"There is no batch {quoted(batch_id)}.", code="batch_not_found")
    return found


def _window(text: str) -> timedelta:
    found = _WINDOW.fullmatch(text)
    if found is None or int(found[1]) > MAX_HOURS:
        raise InvalidRequestError(
            f"Must be hours, from 1h to {MAX_HOURS}h, is {quoted(text)}.", param="completion_window"
        )
    return timedelta(hours=int(found[1]))


def _shown(batch: Batch) -> BatchObject:
    def ended(status: BatchStatus) -> int | None:
        return seconds(batch.ended_at) if batch.status == status else None

    errors = msgspec.json.decode(batch.errors)
    return BatchObject.of(
        batch,
        errors=BatchErrors(data=errors) if errors else None,
        completion_window=batch.window,
        completed_at=ended("completed"),
        failed_at=ended("failed"),
        expired_at=ended("expired"),
        cancelled_at=ended("cancelled"),
        request_counts=RequestCounts(
            total=batch.num_total, completed=batch.num_completed, failed=batch.num_failed
        ),
        metadata=msgspec.json.decode(batch.metadata),
    )
