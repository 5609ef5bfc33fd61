"""The OpenAPI document of the HTTP API, made from the structs that requests are decoded into.

Admin routes are not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import msgspec

from gateway.schemas.answers import ChatCompletionAnswer, ChatCompletionChunk, CompletionAnswer
from gateway.schemas.chat import ChatCompletionRequest
from gateway.schemas.common import ErrorBody
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.models import Model, ModelList
from gateway.schemas.response_answers import ResponseAnswer, ResponseEvent
from gateway.schemas.responses import (
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseFields,
    ResponseRequest,
)
from gateway.schemas.tickets import WsTicket
from gateway.schemas.tokenize import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)

_REFS = "#/components/schemas/{name}"


class Parameter(msgspec.Struct, frozen=True):
    name: str
    place: Literal["path", "query"]
    schema: dict[str, Any]
    description: str


class Operation(msgspec.Struct, frozen=True):
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


def _in_path(name: str, description: str) -> Parameter:
    return Parameter(name, "path", {"type": "string"}, description)


def _integer(name: str, description: str, **schema: int) -> Parameter:
    return Parameter(name, "query", {"type": "integer", **schema}, description)


_MODEL = _in_path("model", "A model's name, or alias.")
_STREAM_ID = _in_path("stream_id", "The id that the header x-sluice-stream-id named.")
_FROM = _integer("from", "Number of whole events already read.", minimum=0, default=0)
_RESPONSE_ID = _in_path("response_id", "A response's id.")
_STREAM = Parameter(
    "stream",
    "query",
    {"type": "boolean", "default": False},
    "Return the events of a background or resumable response instead.",
)
_STARTING_AFTER = _integer(
    "starting_after",
    "Sequence number of the last event read; only with stream.",
    minimum=0,
)
_LIMIT = _integer("limit", "Items per page.", minimum=1, maximum=100, default=20)
_ORDER = Parameter(
    "order", "query", {"enum": ["asc", "desc"], "default": "desc"}, "Order by position."
)
_AFTER = Parameter("after", "query", {"type": "string"}, "The id of the item before the page.")

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a chat",
        body=ChatCompletionRequest,
        answer=ChatCompletionAnswer,
        events=ChatCompletionChunk,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue a text",
        body=CompletionRequest,
        answer=CompletionAnswer,
        events=CompletionAnswer,
    ),
    Operation("post", "/v1/tokenize", "The tokens of a prompt", TokenizeRequest, TokenizeAnswer),
    Operation("post", "/v1/detokenize", "The text of tokens", DetokenizeRequest, DetokenizeAnswer),
    Operation("get", "/v1/models", "The models a key may use", answer=ModelList),
    Operation("get", "/v1/models/{model}", "One model", answer=Model, parameters=(_MODEL,)),
    Operation(
        "get",
        "/v1/streams/{stream_id}",
        "Continue reading a resumable stream",
        events=ChatCompletionChunk,
        parameters=(_STREAM_ID, _FROM),
    ),
    Operation(
        "delete",
        "/v1/streams/{stream_id}",
        "Stop a resumable stream",
        status=204,
        parameters=(_STREAM_ID,),
    ),
    Operation(
        "post",
        "/v1/responses",
        "Create a response",
        body=ResponseRequest,
        answer=ResponseAnswer,
        events=ResponseEvent,
    ),
    Operation(
        "post",
        "/v1/responses/input_tokens",
        "Count the tokens of a response's input",
        body=ResponseFields,
        answer=InputTokens,
    ),
    Operation(
        "get",
        "/v1/responses/{response_id}",
        "A response, or the rest of its events",
        answer=ResponseAnswer,
        events=ResponseEvent,
        parameters=(_RESPONSE_ID, _STREAM, _STARTING_AFTER),
    ),
    Operation(
        "delete",
        "/v1/responses/{response_id}",
        "Delete a response",
        answer=DeletedResponse,
        parameters=(_RESPONSE_ID,),
    ),
    Operation(
        "post",
        "/v1/responses/{response_id}/cancel",
        "Cancel a running response",
        answer=ResponseAnswer,
        parameters=(_RESPONSE_ID,),
    ),
    Operation(
        "get",
        "/v1/responses/{response_id}/input_items",
        "The input items of a response",
        answer=InputItemList,
        parameters=(_RESPONSE_ID, _LIMIT, _ORDER, _AFTER),
    ),
    Operation("post", "/v1/ws-tickets", "A ticket for one WebSocket", answer=WsTicket),
    Operation("get", "/livez", "Whether the process is alive", is_public=True),
    Operation("get", "/readyz", "Whether requests are served", is_public=True),
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
            "description": "OpenAI's API, with vLLM's names for what OpenAI does not have. The "
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
