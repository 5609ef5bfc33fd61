"""Bad requests to every route, and how they are answered.

``python -m tests.gateway.error_cases`` records the answers anew, for a change that means to change
them.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import inspect

from tests.gateway import tiny_model
from tests.gateway.engine_double import says
from tests.gateway.raw_http import exchange
from tests.gateway.serving import MODEL, Gateway, served_double
from tests.gateway.shapes import WITH_BODY

RECORDED = Path(__file__).with_name("recorded_errors.json")

KEPT_HEADERS = ("allow", "connection", "retry-after", "www-authenticate", "x-should-retry")
WRONG_VALUES: tuple[Any, ...] = (-1, "x", True, ["x"], {"x": 1})

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOKENIZE, DETOKENIZE, COUNT = "/v1/tokenize", "/v1/detokenize", "/v1/responses/input_tokens"
SCHEMA_CHECK = "/v1/schemas/check"
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
TENANT = "/admin/v1/tenants/TENANT"
NOWHERE = "00000000-0000-0000-0000-000000000000"

_PICTURE = {"type": "image_url", "image_url": {"url": "data:"}}
_IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
_HI = [{"role": "user", "content": "hi"}]
_FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
_LOOSE = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}

VALID: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": _HI, "max_tokens": 3},
    COMPLETIONS: {"model": MODEL, "prompt": "hi", "max_tokens": 3},
    RESPONSES: {"model": MODEL, "input": "hi", "max_output_tokens": 3},
    COUNT: {"model": MODEL, "input": "hi"},
    MESSAGES: {"model": MODEL, "messages": _HI, "max_tokens": 3},
    COUNT_TOKENS: {"model": MODEL, "messages": _HI},
    TOKENIZE: {"model": MODEL, "prompt": "hi"},
    DETOKENIZE: {"model": MODEL, "tokens": [1]},
    SCHEMA_CHECK: {"model": MODEL, "schema": {}},
}
"""A body of each route that takes one; cases change one field of it."""

FIELDS: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"messages": [{"role": "king", "content": "x"}]},
        {"messages": [{"role": "user", "content": [_PICTURE]}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": "long " * 3000}]},
        {"messages": _HI * 3000},
        {"model": "other"},
        {"max_tokens": None, "max_completion_tokens": 10**6},
        {"max_completion_tokens": 4},
        {"n": 9},
        {"tools": [{"type": "function", "function": _FUNCTION}] * 2},
        {"tools": [{"type": "custom", "custom": {}}]},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"tools": [{"type": "function", "function": {**_FUNCTION, "strict": True,
                                                     "parameters": _LOOSE}}]},
        {"tools": [{"type": "function", "function": _FUNCTION}],
         "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": [{"type": "function", "function": _FUNCTION}],
         "tool_choice": {"type": "allowed_tools",
                         "allowed_tools": {"mode": "auto", "tools": []}}},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "a", "schema": {"type": "nothing"}}}},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "a", "schema": _LOOSE, "strict": True}}},
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"guided_json": {"type": "object"}, "guided_regex": "a"},
        {"logprobs": False, "top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 21},
        {"stop": ["a"] * 20},
        {"stop": "x" * 2000},
        {"metadata": {"a": "b" * 600}},
        {"user": "a", "safety_identifier": "b"},
        {"chat_template_kwargs": {"odd": 1}},
        {"reasoning_effort": "high"},
        {"verbosity": "high"},
        {"store": True},
        {"service_tier": "priority"},
        {"cache_salt": "x" * 300},
    ],
    COMPLETIONS: [
        {"prompt": ["a", 1]},
        {"prompt": [10**6]},
        {"prompt": [[1], [-1]]},
        {"prompt": ["a", ""]},
        {"prompt": ["a"] * 40},
        {"prompt": "hi " * 3000},
        {"best_of": 2},
        {"suffix": "x"},
        {"logprobs": 21},
        {"max_tokens": 10**6},
        {"structured_outputs": {"regex": "("}},
    ],
    RESPONSES: [
        {"input": [{"type": "web_search_call", "id": "x"}]},
        {"input": [{"role": "user"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        {"input": [*_HI, {"type": "function_call_output", "call_id": "c", "output": "x"}]},
        {"input": [*_HI, {"type": "item_reference", "id": "msg_x_0"}]},
        {"input": "hi " * 3000},
        {"input": _HI * 3000},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "name": "a b"}]},
        {"tools": [{"type": "function", "name": "f", "strict": True, "parameters": _LOOSE}]},
        {"tools": [{"type": "function", "name": "f", "parameters": {"type": "nothing"}}]},
        {"tools": [{"type": "function", "name": "f"}] * 2},
        {"tools": [{"type": "function", "name": "f"}] * 200},
        {"tools": [{"type": "function", "name": "f"}],
         "tool_choice": {"type": "function", "name": "g"}},
        {"tools": [{"type": "function", "name": "f"}],
         "tool_choice": {"type": "allowed_tools", "mode": "auto",
                         "tools": [{"type": "function", "name": "g"}]}},
        {"tool_choice": "required"},
        {"text": {"format": {"type": "json_object", "schema": {}}}},
        {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": 3}}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nothing"}}}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": _LOOSE,
                             "strict": True}}},
        {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
        {"text": {"verbosity": "high"}},
        {"reasoning": {"effort": "high"}},
        {"reasoning": {"summary": "detailed"}},
        {"top_logprobs": 21},
        {"max_output_tokens": 0},
        {"max_output_tokens": 10**6},
        {"max_tool_calls": 0},
        {"include": ["message.output_text.secrets"]},
        {"metadata": {"a": "b" * 600}},
        {"previous_response_id": "resp_x"},
        {"store": False, "background": True},
        {"truncation": "auto", "input": "hi " * 3000},
        {"user": "a", "safety_identifier": "b"},
        {"service_tier": "priority"},
        {"chat_template_kwargs": {"odd": 1}},
        {"structured_outputs": {"regex": "("}},
    ],
    MESSAGES: [
        {"messages": []},
        {"messages": [*_HI, {"role": "assistant", "content": "The"}]},
        {"messages": [{"role": "user", "content": [_IMAGE]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
        {"messages": _HI * 3000},
        {"messages": [{"role": "user", "content": "hi " * 3000}]},
        {"model": "other"},
        {"max_tokens": 0},
        {"temperature": 3},
        {"stop_sequences": [""]},
        {"tools": [{"name": "a b", "input_schema": {}}]},
        {"tools": [{"name": "f", "input_schema": {"type": "nothing"}}]},
        {"tools": [{"type": "web_search_20260318", "name": "web_search"}]},
        {"tool_choice": {"type": "any"}},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}],
         "tool_choice": {"type": "tool", "name": "g"}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}},
        {"metadata": {"user_id": " "}},
        {"container": "c"},
    ],
    COUNT_TOKENS: [{"tools": [{"name": "a b", "input_schema": {}}]}, {"max_tokens": 3}],
    COUNT: [{"input": None}, {"input": [{"type": "item_reference", "id": "msg_x_0"}]}],
    TOKENIZE: [
        {"messages": _HI},
        {"prompt": None},
        {"prompt": None, "messages": _HI, "add_special_tokens": True},
        {"prompt": None, "messages": _HI, "tools": [{"type": "custom", "custom": {}}]},
    ],
    DETOKENIZE: [{"tokens": [10**6]}, {"model": "other"}],
    SCHEMA_CHECK: [{"schema": ["a"]}, {"model": "other"}],
}  # fmt: skip
"""Bad values beyond wrong types, which are tried for each field anyway."""

PATHS = [
    "GET /",
    "GET /nothing",
    "GET /v1",
    "GET /v1/",
    "GET /v1/nothing",
    "POST /v1/nothing",
    "POST /v1/moderations",
    "GET /v1/moderations/",
    "GET /v1/moderationsx",
    "POST /v1/messages/batches",
    "GET /v1/messages",
    "GET /v1/chat/completions/x",
    "GET /v1/chat/completions",
    "PUT /v1/responses",
    "DELETE /v1/models",
    "POST /v1/models/tiny",
    "GET /v1/models/other",
    "GET /v1/models/a/b",
    "GET /v1/streams/x",
    "GET /v1/streams/x?from=-1",
    "DELETE /v1/streams/x",
    "PATCH /v1/streams/x",
    "GET /v1/responses/x",
    "GET /v1/responses/x?stream=maybe",
    "GET /v1/responses/x?starting_after=1",
    "GET /v1/responses/x?include=y",
    "GET /v1/responses/x?stream=true&include_obfuscation=true",
    "DELETE /v1/responses/x",
    "POST /v1/responses/x/cancel",
    "GET /v1/responses/x/cancel",
    "GET /v1/responses/x/input_items",
    "GET /v1/responses/x/input_items?limit=0",
    "GET /v1/responses/compact",
    "GET /v1/conversations",
    'POST /v1/conversations {"items": [{"type": "x"}]}',
    'POST /v1/conversations {"metadata": 3}',
    "GET /v1/conversations/x",
    "DELETE /v1/conversations/x",
    'POST /v1/conversations/x {"metadata": {}}',
    'POST /v1/conversations/x {}',
    'POST /v1/conversations/x/items {"items": []}',
    "GET /v1/conversations/x/items",
    "GET /v1/conversations/x/items/y",
    "DELETE /v1/conversations/x/items/y",
    "GET /v1/ws-tickets",
    "POST /livez",
    "POST /metrics",
    "POST /openapi.json",
    "GET /admin/v1",
    "GET /admin/v1/nothing",
    "GET /admin/v1/tenants?limit=0",
    "GET /admin/v1/tenants?limit=1001",
    "GET /admin/v1/tenants?after=x",
    "GET /admin/v1/tenants?tenant_id=x",
    "DELETE /admin/v1/tenants",
    "POST /admin/v1/tenants",
    'POST /admin/v1/tenants {"name": "a b"}',
    'POST /admin/v1/tenants {"name": "acme"}',
    'POST /admin/v1/tenants {"name": "x", "weight": 0}',
    'POST /admin/v1/tenants {"nam": "x"}',
    "GET /admin/v1/tenants/x",
    f"GET /admin/v1/tenants/{NOWHERE}",
    f'PATCH {TENANT} {{"priority": "x"}}',
    f"PUT {TENANT}",
    f'PUT {TENANT}/limits {{"tokens_per_minute": -1}}',
    f'PUT {TENANT}/limits {{"tokens_per_second": 1}}',
    f'POST {TENANT}/projects {{"name": "default"}}',
    f'PATCH {TENANT}/projects/{NOWHERE} {{"name": "x"}}',
    f"PUT {TENANT}/projects/{NOWHERE}/limits",
    f'POST {TENANT}/keys {{"name": "x", "scopes": []}}',
    f'POST {TENANT}/keys {{"name": "x", "scopes": ["king"]}}',
    f'POST {TENANT}/keys {{"name": "x", "project_id": "y"}}',
    f'POST {TENANT}/keys {{"name": "x", "expires_at": 1000000000000000}}',
    f"GET {TENANT}/keys/x",
    f"DELETE {TENANT}/keys/x",
    f'POST {TENANT}/keys/x/rotate {{"grace_seconds": -1}}',
    f"PUT {TENANT}/keys/x/limits",
    f'POST {TENANT}/adapters {{"name": "x", "path": "y"}}',
    f"DELETE {TENANT}/adapters/x",
    "GET /admin/v1/usage?bucket_width=1m",
    "GET /admin/v1/usage?group_by=x",
    "GET /admin/v1/usage?start_time=9&end_time=8",
    "GET /admin/v1/usage/requests?status=x",
    "GET /admin/v1/usage/requests?format=xml",
    "GET /admin/v1/usage/requests?key_id=x",
    f"GET /admin/v1/audit_log?tenant_id={NOWHERE}",
    "GET /admin/v1/streams?tenant_id=x",
    f"DELETE /admin/v1/streams/{NOWHERE}",
    "DELETE /admin/v1/streams/x",
    "POST /admin/v1/engine",
]  # fmt: skip
"""Requests as ``METHOD PATH BODY``, sent by an administrator who may also chat."""

HEADERS: list[dict[str, str]] = [
    {"authorization": ""},
    {"authorization": "Basic x"},
    {"authorization": "Bearer sk-wrong"},
    {"authorization": "Bearer CHAT"},
    {"authorization": "Bearer USAGE"},
    {"authorization": "Bearer RESPONSES"},
    {"content-type": "text/plain"},
    {"content-encoding": "gzip"},
    {"idempotency-key": ""},
    {"idempotency-key": "x" * 256},
    {"x-sluice-resumable": "2"},
    {"x-sluice-resumable": "1"},
    {"content-length": "99999999", "expect": "100-continue"},
]
PATHS_WITH_HEADERS = [
    *(f"POST {path}" for path in VALID),
    "POST /v1/ws-tickets",
    "GET /v1/models",
    "GET /v1/responses/x",
    "GET /v1/nothing",
    "GET /metrics",
    "GET /admin/v1/tenants",
    "GET /admin/v1/usage",
    "GET /admin/v1/nothing",
]
BODIES: list[bytes] = [
    b"", b"{", b"[]", b"null", b'"\xff"', b'{"a": 1}', b"[" * 2000, b'{"model": "tiny"} x',
]  # fmt: skip


class Case(NamedTuple):
    name: str
    method: str
    path: str
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})


def cases() -> Iterator[Case]:
    for operation in WITH_BODY:
        path = operation.path
        if path not in VALID:
            continue
        info = inspect.type_info(operation.body)
        assert isinstance(info, inspect.StructType)
        changes = [{field.encode_name: v} for field in info.fields for v in WRONG_VALUES]
        changes = [{"odd": 1}, *(change for change in changes if change not in FIELDS[path])]
        for change in [*FIELDS[path], *changes]:
            body = {k: v for k, v in {**VALID[path], **change}.items() if v is not None}
            yield Case(_short(f"{path} {_json(change)}"), "POST", path, _json(body).encode())
        for missing in VALID[path]:
            body = {k: v for k, v in VALID[path].items() if k != missing}
            yield Case(f"{path} without {missing}", "POST", path, _json(body).encode())
        for raw in BODIES:
            yield Case(_short(f"{path} raw {raw!r}"), "POST", path, raw)
    for line in PATHS:
        method, path, text = (*line.split(" ", 2), "")[:3]
        yield Case(line, method, path, text.encode())
    for line in PATHS_WITH_HEADERS:
        method, path = line.split(" ")
        valid = _json(VALID[path]).encode() if path in VALID else b""
        for headers in HEADERS:
            yield Case(_short(f"{line} {_json(headers)}"), method, path, valid, headers)


def _json(value: object) -> str:
    return json.dumps(value)


def _short(name: str) -> str:
    return name if len(name) <= 240 else f"{name[:240]}…"


async def answers(gateway: Gateway) -> dict[str, Any]:
    """The error that each case is answered with; those that succeed are left out."""
    keys = {
        "CHAT": await gateway.key("chat"),
        "USAGE": await gateway.key("usage"),
        "RESPONSES": await gateway.key("responses"),
    }
    every = await gateway.key("chat", "responses", "owner")
    tenant = str(gateway.tenant.id)
    found: dict[str, Any] = {}
    for case in cases():
        headers = {
            "host": "x",
            "authorization": f"Bearer {every}",
            "content-length": str(len(case.body)),
            **case.headers,
        }
        given = headers["authorization"].removeprefix("Bearer ")
        headers["authorization"] = headers["authorization"].replace(given, keys.get(given, given))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value != "")
        path = case.path.replace("TENANT", tenant)
        request = f"{case.method} {path} HTTP/1.1\r\n{head}\r\n".encode() + case.body
        answer = await exchange(gateway, request)
        if answer.status < 400:
            continue
        kept = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
        written = json.loads(answer.body.decode().replace(tenant, "TENANT"))
        assert case.name not in found, case.name
        found[case.name] = [answer.status, *written["error"].values(), *([kept] if kept else [])]
    return found


async def _record() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with served_double(tiny_model.build(Path(folder))) as (gateway, double):
            double.script = says("Hi")
            found = await answers(gateway)
    lines = (f"{_json(name)}: {_json(answer)}" for name, answer in found.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    asyncio.run(_record())
