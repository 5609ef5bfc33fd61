"""``/v1/files``: upload, list, retrieve, read and delete.

Another tenant's file is a 404, as is an unknown one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway import context
from gateway.batches.files import find_file, no_file
from gateway.batches.form import Form
from gateway.errors import ApiError, Conflict, InvalidRequestError
from gateway.middleware.body_limit import drain
from gateway.routes.http import json_answer, query_number
from gateway.schemas.files import DeletedFile, FileList, FileObject
from gateway.services import Services
from tenants.files import StoredFile

MAX_LIMIT = 10_000


async def upload(services: Services, request: Request) -> Response:
    tenant_id = context.principal_of(request.scope).tenant.id
    form = Form(request)
    try:
        return json_answer(_shown(await services.uploads.take(tenant_id, form)))
    except ApiError:
        if not form.is_whole:  # Many clients read no answer before they have sent all.
            await drain(request.receive)
        raise


async def list_all(services: Services, request: Request) -> Response:
    tenant_id, params = context.principal_of(request.scope).tenant.id, request.query_params
    order = params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("Must be asc or desc.", param="order")
    limit = query_number(request, "limit", MAX_LIMIT, most=MAX_LIMIT)
    assert limit is not None
    after, purpose = params.get("after"), params.get("purpose")
    if purpose is not None and "\0" in purpose:
        raise InvalidRequestError("Must not contain NUL.", param="purpose")
    found = await services.store.files.list(
        tenant_id,
        limit=limit + 1,
        purpose=purpose,
        after=after,
        is_descending=order == "desc",
    )
    shown = [_shown(file) for file in found[:limit]]
    return json_answer(
        FileList(
            data=shown,
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
            has_more=len(found) > limit,
        )
    )


async def retrieve(services: Services, request: Request) -> Response:
    tenant_id = context.principal_of(request.scope).tenant.id
    return json_answer(_shown(await find_file(services.store.files, tenant_id, _id(request))))


async def content(services: Services, request: Request) -> Response:
    tenant_id = context.principal_of(request.scope).tenant.id
    file = await find_file(services.store.files, tenant_id, _id(request))
    return StreamingResponse(
        _bytes(services, tenant_id, file),
        media_type="application/octet-stream",
        headers={"content-length": str(file.size)},
    )


async def _bytes(services: Services, tenant_id: UUID, file: StoredFile) -> AsyncIterator[bytes]:
    num_left = file.size
    async for piece in services.store.files.content(tenant_id, file.id):
        num_left -= len(piece)
        yield piece
    if num_left:
        raise no_file(file.id)  # It was deleted meanwhile: the answer must not look whole.


async def delete(services: Services, request: Request) -> Response:
    tenant_id, file_id = context.principal_of(request.scope).tenant.id, _id(request)
    if not await services.store.files.delete(tenant_id, file_id):
        await find_file(services.store.files, tenant_id, file_id)
        raise Conflict("A batch that runs reads it; cancel that first.", code="file_in_use")
    return json_answer(DeletedFile(id=file_id))


def _id(request: Request) -> str:
    file_id: str = request.path_params["file_id"]
    return file_id


def _shown(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=int(file.created_at.timestamp()),
        expires_at=None if file.expires_at is None else int(file.expires_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
    )
