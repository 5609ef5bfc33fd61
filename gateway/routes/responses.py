"""``/v1/responses``: create, retrieve, cancel, delete, and the input items of a response.

Another tenant's response is a 404, as is an unknown one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.client_notes import client_notes
from gateway.answers.event_stream import EventStream, FollowingEventStream
from gateway.answers.refusals import refusal
from gateway.errors import (
    ApiError,
    Gone,
    InvalidRequestError,
    StreamNotFound,
    UnsupportedParameter,
    quoted,
)
from gateway.responses import compaction
from gateway.responses.events import token_of_response
from gateway.responses.fields import HARMLESS_INCLUDES
from gateway.responses.items import bare, output_id
from gateway.responses.run import ResponseRun
from gateway.routes import answers
from gateway.routes.http import json_answer, while_connected
from gateway.routes.paging import id_listing, id_page, of_all
from gateway.schemas.responses import (
    CompactionAnswer,
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseFields,
    ResponseRequest,
)
from gateway.services import Services
from gateway.streams.log import StreamReader

_items_decoder: msgspec.json.Decoder[list[dict[str, Any]]] = msgspec.json.Decoder(
    list[dict[str, Any]]
)


async def create(services: Services, request: Request, body: ResponseRequest) -> Response:
    resumable = answers.is_resumable(request, field=body.resumable, stream=body.stream)
    if body.background and body.store is False:
        raise InvalidRequestError(
            "Must not be false where background is true: such a response is fetched later.",
            param="store",
        )
    known = context.of(request.scope)
    known.notes.update(client_notes(body))
    beginning = services.responses.begin(
        body,
        principal=context.principal_of(request.scope),
        request_id=known.request_id,
        is_background=bool(body.background),
    )
    run = await while_connected(request, beginning)
    if run.generation is not None:
        answers.note_admission(known, run.generation.admitted)
        await _wait_for_refusal(request, run)
    if body.background:
        return await _in_background(services, run, stream=bool(body.stream))
    if body.stream and resumable:
        reader = await _record(services, run, is_detached=False)
        return FollowingEventStream(reader, heartbeat_s=services.config.server.heartbeat_s)
    if body.stream:
        return EventStream(run, heartbeat_s=services.config.server.heartbeat_s)
    try:
        return await while_connected(request, _collect(request, run))
    finally:
        run.close()


async def count(services: Services, request: Request, fields: ResponseFields) -> Response:
    principal = context.principal_of(request.scope)
    counting = services.responses.count(fields, principal=principal)
    num_tokens = await while_connected(request, counting)
    return json_answer(InputTokens(input_tokens=num_tokens))


async def compact(services: Services, request: Request, fields: ResponseFields) -> Response:
    known = context.of(request.scope)
    beginning = services.responses.begin(
        compaction.asking(fields),
        principal=context.principal_of(request.scope),
        request_id=known.request_id,
        is_continued=True,
    )
    run = await while_connected(request, beginning)
    assert run.generation is not None
    answers.note_admission(known, run.generation.admitted)
    try:
        body = await while_connected(request, run.result())
    except ApiError as exc:
        return refusal(request.scope, exc, began=run.generation.num_generated_tokens > 0)
    finally:
        run.close()
    summary = "".join(part["text"] for part in _texts(msgspec.json.decode(body)["output"]))
    response = run.encoder.response
    item_id = output_id("compaction", token_of_response(run.id), 0)
    *asked, _ = run.asked()  # the last one asks for the summary
    return json_answer(
        CompactionAnswer(
            id=run.id,
            created_at=response["created_at"],
            output=[*map(bare, compaction.compacted(asked, summary, item_id))],
            usage=response["usage"],
        )
    )


def _texts(output: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in output:
        if item["type"] == "message":
            yield from item["content"]


async def retrieve(services: Services, request: Request) -> Response:
    _check_include(request)
    principal = context.principal_of(request.scope)
    tenant_id = principal.tenant.id
    response_id: str = request.path_params["response_id"]
    if not _flag(request, "stream"):
        if "starting_after" in request.query_params:
            raise InvalidRequestError("Only allowed when stream is true.", param="starting_after")
        return _json(await services.responses.body(tenant_id, response_id))
    await services.responses.body(tenant_id, response_id)  # raises a 404 that names the response
    after = _number(request, "starting_after", default=-1)
    try:
        reader = await services.streams.follow_as(
            principal, response_id, kind="sse", after=after + 1
        )
    except StreamNotFound:
        raise Gone(
            "The events of this response are not kept, or not any longer: they are kept for a "
            "while if it is created with background or resumable. Retrieve it without stream.",
            code="response_events_gone",
        ) from None
    return FollowingEventStream(reader, heartbeat_s=services.config.server.heartbeat_s)


async def delete(services: Services, request: Request) -> Response:
    tenant_id = context.principal_of(request.scope).tenant.id
    response_id: str = request.path_params["response_id"]
    await services.responses.delete(tenant_id, response_id)
    await services.streams.forget(response_id, tenant_id)
    return json_answer(DeletedResponse(id=response_id))


async def cancel(services: Services, request: Request) -> Response:
    tenant_id = context.principal_of(request.scope).tenant.id
    return _json(await services.responses.cancel(tenant_id, request.path_params["response_id"]))


async def input_items(services: Services, request: Request) -> Response:
    _check_include(request)
    tenant_id = context.principal_of(request.scope).tenant.id
    items = await services.responses.input_items(tenant_id, request.path_params["response_id"])
    page = id_page(request)
    found = of_all(_items_decoder.decode(items), page)
    return id_listing(InputItemList, found, page, dict, itemgetter("id"))


async def _record(services: Services, run: ResponseRun, *, is_detached: bool) -> StreamReader:
    """Record the events under the response's id; an event's position is its sequence number.
    ``Streams`` owns the run from here on."""
    return await services.streams.open(
        run.id, run, tenant_id=run.tenant_id, kind="sse", is_detached=is_detached
    )


async def _in_background(services: Services, run: ResponseRun, *, stream: bool) -> Response:
    try:
        await services.responses.keep(run)
        body = run.body()
    except BaseException:
        run.refuse()
        raise
    reader = await _record(services, run, is_detached=True)
    if stream:
        return FollowingEventStream(reader, heartbeat_s=services.config.server.heartbeat_s)
    reader.close()
    return _json(body)


async def _wait_for_refusal(request: Request, run: ResponseRun) -> None:
    """Let the engine refuse while that can still be a status."""
    assert run.generation is not None
    try:
        await answers.wait_for_refusal(request, run.generation)
    except BaseException:
        run.refuse()
        raise


async def _collect(request: Request, run: ResponseRun) -> Response:
    try:
        return _json(await run.result())
    except ApiError as exc:
        return refusal(request.scope, exc, began=run.has_begun)


def _check_include(request: Request) -> None:
    if _flag(request, "include_obfuscation"):
        raise UnsupportedParameter(
            "Events are kept as they were sent; ask for it when you create the response.",
            param="include_obfuscation",
        )
    params = request.query_params
    for name in (*params.getlist("include"), *params.getlist("include[]")):
        if name not in HARMLESS_INCLUDES:
            raise UnsupportedParameter(
                f"{quoted(name)} cannot be included by this server.", param="include"
            )


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequestError("Must be true or false.", param=name)
    return value == "true"


def _number(request: Request, name: str, *, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequestError("Must be a number, 0 or more.", param=name)
    return int(text)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
