"""The OpenAPI document of the HTTP API, made from the table of routes and the structs that requests
are decoded into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from gateway.schemas.common import ErrorBody
from gateway.schemas.operation import SOCKET, Operation, Parameter

_REFS = "#/components/schemas/{name}"
_NAME = re.compile(r"\{(\w+)")
_PATH_PARAMETERS = {
    "model": "A model's name, or alias.",
    "stream_id": "A stream's id, as the header x-sluice-stream-id or the list of them names it.",
    "completion_id": "A stored chat completion's id.",
    "response_id": "A response's id.",
    "conversation_id": "A conversation's id.",
    "item_id": "An item's id.",
    "file_id": "A file's id.",
    "batch_id": "A batch's id.",
    "tenant_id": "A tenant's id.",
    "project_id": "A project's id.",
    "key_id": "A key's id, or its public id.",
    "adapter": "An adapter's name, or id.",
    "server_id": "An MCP server's id.",
    "engine_id": "An engine's id, as `/admin/v1/fleet` has it.",
    "webhook_id": "A webhook's id.",
}


_UPLOAD = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"enum": ["batch", "vision", "user_data"]},
                    "expires_after[anchor]": {"const": "created_at"},
                    "expires_after[seconds]": {
                        "type": "integer", "minimum": 3600, "maximum": 2592000,
                    },
                },
            }
        }
    },
}  # fmt: skip


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of those that have a summary and are no sockets."""
    described = [one for one in operations if one.summary and one.method != SOCKET]
    used = [s for o in described for s in (o.body, o.answer, o.events) if s is not None]
    _, components = msgspec.json.schema_components([*used, ErrorBody], ref_template=_REFS)
    paths: dict[str, Any] = {}
    for operation in described:
        path, method = operation.path.replace(":path}", "}"), operation.method.lower()
        paths.setdefault(path, {})[method] = _operation(operation, f"{method}_{path.strip('/')}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice",
            "version": package_version(),
            "description": "OpenAI's API, with vLLM's names for what OpenAI does not have, and the "
            "administration. /asyncapi.json describes the WebSockets.",
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


def _operation(operation: Operation, name: str) -> dict[str, Any]:
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
        "operationId": name.translate(_TO_ID),
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
    if operation.uploads:
        written["requestBody"] = _UPLOAD
    parameters = [_in_path(name) for name in _NAME.findall(operation.path)]
    parameters += [_in_query(parameter) for parameter in operation.query]
    if parameters:
        written["parameters"] = parameters
    if operation.scope is None:
        written["security"] = []
    return written


_TO_ID = str.maketrans({"/": "_", "-": "_", ".": "_", "{": None, "}": None})


def _in_path(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
        "description": _PATH_PARAMETERS[name],
    }


def _in_query(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "schema": parameter.schema,
        "description": parameter.description,
    }


def _ref(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REFS.format(name=struct.__name__)}
