"""The OpenAPI document of the HTTP surface, made from the same structs that requests are read with.

Admin routes are not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from gateway.schemas.answers import ChatCompletionAnswer, ChatCompletionChunk, CompletionAnswer
from gateway.schemas.chat import ChatCompletionRequest
from gateway.schemas.common import ErrorBody
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.models import Model, ModelList
from gateway.schemas.response_answers import ResponseAnswer, ResponseEvent
from gateway.schemas.responses import DeletedResponse, InputItemList, ResponseRequest
from gateway.schemas.tickets import WsTicket
from gateway.schemas.tokenize import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)

_REFS = "#/components/schemas/{name}"


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    place: str
    """``path`` or ``query``."""
    schema: dict[str, Any]
    description: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method at one path."""

    method: str
    path: str
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    events: type[msgspec.Struct] | None = None
    """The data of a streamed answer's events."""
    status: int = 200
    parameters: tuple[Parameter, ...] = ()
    is_public: bool = False


_STREAM_ID = Parameter(
    name="stream_id",
    place="path",
    schema={"type": "string"},
    description="As the header x-sluice-stream-id named it.",
)
_FROM = Parameter(
    name="from",
    place="query",
    schema={"type": "integer", "minimum": 0, "default": 0},
    description="Whole events read already.",
)
_MODEL = Parameter(
    name="model", place="path", schema={"type": "string"}, description="A model's name, or alias."
)

_RESPONSE_ID = Parameter(
    name="response_id", place="path", schema={"type": "string"}, description="A response's id."
)
_STREAM = Parameter(
    name="stream",
    place="query",
    schema={"type": "boolean", "default": False},
    description="Its events instead, of one in the background or resumable.",
)
_STARTING_AFTER = Parameter(
    name="starting_after",
    place="query",
    schema={"type": "integer", "minimum": 0},
    description="The sequence number of the last event that was read; only with stream.",
)
_LIMIT = Parameter(
    name="limit",
    place="query",
    schema={"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    description="Items of one page.",
)
_ORDER = Parameter(
    name="order",
    place="query",
    schema={"enum": ["asc", "desc"], "default": "desc"},
    description="By their place.",
)
_AFTER = Parameter(
    name="after",
    place="query",
    schema={"type": "string"},
    description="The id of the item before the page.",
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a chat",
        body=ChatCompletionRequest,
        answer=ChatCompletionAnswer,
        events=ChatCompletionChunk,
    ),
    Operation(
        method="post",
        path="/v1/completions",
        summary="Continue a text",
        body=CompletionRequest,
        answer=CompletionAnswer,
        events=CompletionAnswer,
    ),
    Operation(
        method="post",
        path="/v1/tokenize",
        summary="The tokens of a prompt",
        body=TokenizeRequest,
        answer=TokenizeAnswer,
    ),
    Operation(
        method="post",
        path="/v1/detokenize",
        summary="The text of tokens",
        body=DetokenizeRequest,
        answer=DetokenizeAnswer,
    ),
    Operation(
        method="get", path="/v1/models", summary="The models a key may use", answer=ModelList
    ),
    Operation(
        method="get",
        path="/v1/models/{model}",
        summary="One model",
        answer=Model,
        parameters=(_MODEL,),
    ),
    Operation(
        method="get",
        path="/v1/streams/{stream_id}",
        summary="Read a resumable stream on",
        events=ChatCompletionChunk,
        parameters=(_STREAM_ID, _FROM),
    ),
    Operation(
        method="delete",
        path="/v1/streams/{stream_id}",
        summary="Stop a resumable stream",
        status=204,
        parameters=(_STREAM_ID,),
    ),
    Operation(
        method="post",
        path="/v1/responses",
        summary="Respond",
        body=ResponseRequest,
        answer=ResponseAnswer,
        events=ResponseEvent,
    ),
    Operation(
        method="get",
        path="/v1/responses/{response_id}",
        summary="A response, or its events read on",
        answer=ResponseAnswer,
        events=ResponseEvent,
        parameters=(_RESPONSE_ID, _STREAM, _STARTING_AFTER),
    ),
    Operation(
        method="delete",
        path="/v1/responses/{response_id}",
        summary="Delete a response",
        answer=DeletedResponse,
        parameters=(_RESPONSE_ID,),
    ),
    Operation(
        method="post",
        path="/v1/responses/{response_id}/cancel",
        summary="End a response that runs",
        answer=ResponseAnswer,
        parameters=(_RESPONSE_ID,),
    ),
    Operation(
        method="get",
        path="/v1/responses/{response_id}/input_items",
        summary="What a response was asked",
        answer=InputItemList,
        parameters=(_RESPONSE_ID, _LIMIT, _ORDER, _AFTER),
    ),
    Operation(
        method="post",
        path="/v1/ws-tickets",
        summary="A ticket for one WebSocket",
        answer=WsTicket,
    ),
    Operation(method="get", path="/livez", summary="Is the process alive", is_public=True),
    Operation(method="get", path="/readyz", summary="Can it serve", is_public=True),
)


def document(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    used = [s for o in operations for s in (o.body, o.answer, o.events) if s is not None]
    _, components = msgspec.json.schema_components([*used, ErrorBody], ref_template=_REFS)
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice",
            "version": package_version(),
            "description": "OpenAI's API, with names of vLLM's where OpenAI has none. The "
            "WebSocket chat is described by /asyncapi.json.",
        },
        "security": [{"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Error": {
                    "description": "The request failed; see its code.",
                    "content": {"application/json": {"schema": _ref(ErrorBody)}},
                }
            },
        },
    }


def package_version() -> str:
    try:
        return version("sluice")
    except PackageNotFoundError:  # run from a checkout
        return "0"


def _operation(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": _ref(operation.answer)}
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _ref(operation.events)}
    answer: dict[str, Any] = {"description": operation.summary}
    if content:
        answer["content"] = content
    written: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method}_{operation.path.strip('/')}".translate(_TO_ID),
        "responses": {
            str(operation.status): answer,
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    if operation.body is not None:
        written["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(operation.body)}},
        }
    if operation.parameters:
        written["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
    if operation.is_public:
        written["security"] = []
    return written


_TO_ID = str.maketrans({"/": "_", "-": "_", "{": None, "}": None})


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "schema": parameter.schema,
        "description": parameter.description,
    }


def _ref(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REFS.format(name=struct.__name__)}
