"""``/v1/files``: upload, list, retrieve, read and delete.

Another tenant's file is a 404, as is an unknown one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from operator import attrgetter
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway import context
from gateway.batches.files import find_file, no_file
from gateway.batches.form import Form
from gateway.errors import ApiError, Conflict, InvalidRequestError
from gateway.middleware.body_limit import drain
from gateway.routes.http import json_answer
from gateway.routes.paging import id_listing, id_page
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
    tenant_id = context.principal_of(request.scope).tenant.id
    page = id_page(request, default=MAX_LIMIT, most=MAX_LIMIT)
    purpose = request.query_params.get("purpose")
    if purpose is not None and "\0" in purpose:
        raise InvalidRequestError("Must not contain NUL.", param="purpose")
    found = await services.store.files.list(
        tenant_id,
        limit=page.fetched,
        purpose=purpose,
        after=page.after,
        is_descending=page.is_descending,
    )
    return id_listing(FileList, found, page, _shown, attrgetter("id"))


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
    return FileObject.of(file, bytes=file.size)
