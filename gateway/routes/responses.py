"""``/v1/responses``: create, retrieve, cancel, delete, and the input items of a response.

Another tenant's response is a 404, as is an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway import context
from gateway.admission.client_notes import client_notes
from gateway.answers.event_stream import FollowingEventStream
from gateway.config import ServerConfig
from gateway.errors import (
    ApiError,
    Gone,
    InvalidRequestError,
    NotFound,
    StreamNotFound,
    UnsupportedParameter,
    quoted,
)
from gateway.responses.fields import HARMLESS_INCLUDES
from gateway.responses.responses import Responses
from gateway.responses.run import ResponseRun
from gateway.responses.streaming import ResponseEventStream, record
from gateway.routes import answers
from gateway.schemas.responses import (
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseFields,
    ResponseRequest,
)
from gateway.streams.streams import Streams
from gateway.transport import bodies
from gateway.transport.disconnect import until_disconnect

PATH = "/v1/responses"
MAX_LIMIT = 100
"""The most input items of one page."""

_decoder = msgspec.json.Decoder(ResponseRequest)
_fields_decoder = msgspec.json.Decoder(ResponseFields)
_items_decoder: msgspec.json.Decoder[list[dict[str, Any]]] = msgspec.json.Decoder(
    list[dict[str, Any]]
)


class ResponseRoutes:
    """The HTTP side of ``Responses``."""

    def __init__(self, responses: Responses, streams: Streams, config: ServerConfig) -> None:
        self._responses = responses
        self._streams = streams
        self._heartbeat_s = config.heartbeat_s

    def routes(self) -> list[BaseRoute]:
        one = f"{PATH}/{{response_id}}"
        return [
            Route(PATH, self.create, methods=["POST"]),
            Route(f"{PATH}/input_tokens", self.count, methods=["POST"]),
            Route(f"{PATH}/compact", _not_served, methods=["GET", "POST"]),
            Route(one, self.retrieve, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/cancel", self.cancel, methods=["POST"]),
            Route(f"{one}/input_items", self.input_items, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        answers.check_media_type(request)
        body = bodies.decode(_decoder, await request.body())
        resumable = answers.is_resumable(request, field=body.resumable, stream=body.stream)
        if body.background and body.store is False:
            raise InvalidRequestError(
                "Must not be false where background is true: such a response is fetched later.",
                param="store",
            )
        if body.stream_options is not None and not body.stream:
            raise InvalidRequestError("Only allowed when stream is true.", param="stream_options")
        known = context.of(request.scope)
        known.notes.update(client_notes(body))
        run = await until_disconnect(
            request.receive,
            self._responses.begin(
                body,
                principal=context.principal_of(request.scope),
                request_id=known.request_id,
                is_background=bool(body.background),
            ),
            known.departure,
        )
        assert run.generation is not None
        known.admitted(run.generation.admitted.hold.answer)
        await self._wait_for_refusal(request, run)
        if body.background:
            return await self._in_background(run, stream=bool(body.stream))
        if body.stream and resumable:
            reader = await record(self._streams, run, is_detached=False)
            return FollowingEventStream(reader, heartbeat_s=self._heartbeat_s)
        if body.stream:
            return ResponseEventStream(run, heartbeat_s=self._heartbeat_s)
        try:
            return await until_disconnect(request.receive, _collect(run), known.departure)
        finally:
            run.close()

    async def count(self, request: Request) -> Response:
        answers.check_media_type(request)
        fields = bodies.decode(_fields_decoder, await request.body())
        principal = context.principal_of(request.scope)
        num_tokens = await until_disconnect(
            request.receive,
            self._responses.count(fields, principal=principal),
            context.of(request.scope).departure,
        )
        return _json(msgspec.json.encode(InputTokens(input_tokens=num_tokens)))

    async def retrieve(self, request: Request) -> Response:
        _check_include(request)
        principal = context.principal_of(request.scope)
        tenant_id = principal.tenant.id
        response_id: str = request.path_params["response_id"]
        if not _flag(request, "stream"):
            if "starting_after" in request.query_params:
                raise InvalidRequestError(
                    "Only allowed when stream is true.", param="starting_after"
                )
            return _json(await self._responses.body(tenant_id, response_id))
        await self._responses.body(tenant_id, response_id)  # raises a 404 that names the response
        after = _number(request, "starting_after", default=-1)
        try:
            reader = await self._streams.follow_as(
                principal, response_id, kind="sse", after=after + 1
            )
        except StreamNotFound:
            raise Gone(
                "The events of this response are not kept, or not any longer: they are kept for a "
                "while if it is created with background or resumable. Retrieve it without stream.",
                code="response_events_gone",
            ) from None
        return FollowingEventStream(reader, heartbeat_s=self._heartbeat_s)

    async def delete(self, request: Request) -> Response:
        tenant_id = context.principal_of(request.scope).tenant.id
        response_id: str = request.path_params["response_id"]
        await self._responses.delete(tenant_id, response_id)
        await self._streams.forget(response_id, tenant_id)
        return _json(msgspec.json.encode(DeletedResponse(id=response_id)))

    async def cancel(self, request: Request) -> Response:
        tenant_id = context.principal_of(request.scope).tenant.id
        return _json(await self._responses.cancel(tenant_id, request.path_params["response_id"]))

    async def input_items(self, request: Request) -> Response:
        _check_include(request)
        tenant_id = context.principal_of(request.scope).tenant.id
        items = await self._responses.input_items(tenant_id, request.path_params["response_id"])
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequestError("Must be asc or desc.", param="order")
        limit = _number(request, "limit", default=20)
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidRequestError(f"Must be from 1 to {MAX_LIMIT}.", param="limit")
        found = _items_decoder.decode(items)
        if order == "desc":
            found.reverse()
        return _json(msgspec.json.encode(_page(found, request.query_params.get("after"), limit)))

    async def _in_background(self, run: ResponseRun, *, stream: bool) -> Response:
        try:
            await self._responses.keep(run)
            body = run.body()
        except BaseException:
            run.refuse()
            raise
        reader = await record(self._streams, run, is_detached=True)
        if stream:
            return FollowingEventStream(reader, heartbeat_s=self._heartbeat_s)
        reader.close()
        return _json(body)

    async def _wait_for_refusal(self, request: Request, run: ResponseRun) -> None:
        """Let the engine refuse while that can still be a status."""
        assert run.generation is not None
        try:
            await answers.wait_for_refusal(request, run.generation)
        except BaseException:
            run.refuse()
            raise


async def _not_served(request: Request) -> Response:
    """They would be taken for the ids of responses."""
    raise NotFound("This server does not have this path of the Responses API.")


async def _collect(run: ResponseRun) -> Response:
    assert run.generation is not None
    try:
        return _json(await run.result())
    except ApiError as exc:
        return answers.error_response(exc, began=run.generation.num_generated_tokens > 0)


def _page(items: Sequence[dict[str, Any]], after: str | None, limit: int) -> InputItemList:
    start = 0
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidRequestError("There is no such item among them.", param="after")
        start = ids.index(after) + 1
    page = list(items[start : start + limit])
    return InputItemList(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=start + limit < len(items),
    )


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
