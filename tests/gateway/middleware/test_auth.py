from __future__ import annotations

from typing import get_args

import pytest
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from gateway import context
from gateway.concurrency.fair_starts import FairStarts
from gateway.errors import InvalidApiKey, InvalidRequestError
from gateway.middleware.auth import Auth, Operations, key_in
from gateway.routes import pages
from gateway.schemas.operation import SOCKET, Operation
from tenants.errors import NotAllowed
from tenants.types import Scope as KeyScope
from tests.gateway.raw_http import exchange, get
from tests.gateway.serving import Gateway

CLOSED = ["/v1/models", "/v1/chat/completions", "/metrics", "/nowhere", "/v1", "/v1/chat/"]


@pytest.mark.asyncio
async def test_everything_is_closed_without_a_key(gateway: Gateway) -> None:
    for path in CLOSED:
        answer = await get(gateway, path)
        assert answer.status == 401, path
        assert answer.error["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"]


@pytest.mark.asyncio
async def test_tricks_with_host_and_path_open_nothing(gateway: Gateway) -> None:
    """CVE-2026-49468: a URL built from the Host header pointed elsewhere than the path."""
    paths = [
        "/v1/models",
        "//v1/models",
        "/livez/../v1/models",
        "/livez;/v1/models",
        "/v1%2fmodels",
        "/%2e%2e/v1/models",
        "/livez%00/v1/models",
        "http://x/livez#/v1/models",
        "http://x/v1/models",
    ]
    for host in ("x", "x/livez", "x/livez?", "x/#@y", "x:1/livez#", "/livez"):
        for path in paths:
            request = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            answer = await exchange(gateway, request.encode())
            if path.endswith("/livez#/v1/models"):
                continue  # its path is /livez indeed
            assert answer.status in (400, 401), (host, path)


@pytest.mark.asyncio
async def test_keys_of_every_wrong_kind(gateway: Gateway) -> None:
    good = gateway.api_key
    for header in (
        "",
        "Bearer",
        "Bearer ",
        good,
        f"Basic {good}",
        f"Bearer {good}x",
        f"Bearer {good[:-1]}",
        f"Bearer {good[:25]}{'B' if good[25] == 'A' else 'A'}{good[26:]}",
        "Bearer ' OR 1=1 --",
        "Bearer " + "x" * 10_000,
    ):
        answer = await get(gateway, "/v1/models", authorization=header)
        assert answer.status == 401, header
        assert answer.error["code"] == "invalid_api_key"
        assert good[20:40] not in answer.body.decode()
    for header in (f"Bearer {good}", f"bearer  {good} "):
        assert (await get(gateway, "/v1/models", authorization=header)).status == 200


@pytest.mark.asyncio
async def test_scopes(gateway: Gateway) -> None:
    admin, both = await gateway.key("admin"), await gateway.key("admin", "chat")
    for path, key, status in (
        ("/metrics", gateway.api_key, 403),
        ("/metrics", admin, 200),
        ("/metrics", both, 200),
        ("/v1/models", admin, 403),
        ("/v1/models", both, 200),
    ):
        answer = await get(gateway, path, authorization=f"Bearer {key}")
        assert answer.status == status, path


@pytest.mark.asyncio
async def test_public_paths_are_served_without_a_key(gateway: Gateway) -> None:
    for path in ("/livez", "/readyz", *(page.path for page in pages.operations())):
        expected = 308 if path == "/admin" else 200
        assert (await get(gateway, path)).status == expected, path


async def never(*_: object) -> None:
    raise AssertionError


OPERATIONS = Operations(
    [
        Operation("GET", "/open", "", never, None),
        Operation("GET", "/admin/v1/one", "", never, "admin"),
        Operation("GET", "/v1/{id}/deep", "", never, "responses"),
        Operation("POST", "/v1/fixed", "", never, "chat"),
        Operation("DELETE", "/v1/{id}", "", never, "usage"),
        Operation(SOCKET, "/ws", "", never, "chat"),
    ]
)


@pytest.mark.parametrize(
    ("kind", "method", "path", "needed"),
    [
        ("http", "GET", "/open", None),
        ("http", "HEAD", "/open", None),
        ("http", "POST", "/open", None),
        ("http", "GET", "/admin/v1/one", "admin"),
        ("http", "POST", "/admin/v1/one", "usage"),
        ("http", "GET", "/admin/v1/none", "usage"),
        ("http", "GET", "/v1/x/deep", "responses"),
        ("http", "PUT", "/v1/x/deep", "responses"),
        ("http", "DELETE", "/v1/fixed", "usage"),
        ("http", "GET", "/v1/responses/x/y", "responses"),
        ("http", "GET", "/none", "chat"),
        ("http", "GET", "/ws", None),
        ("websocket", "", "/ws", None),
        ("websocket", "", "/open", None),
        ("websocket", "", "/v1/fixed", "chat"),
        ("websocket", "", "/none", "chat"),
    ],
)
@pytest.mark.asyncio
async def test_a_key_needs_what_the_table_says(
    gateway: Gateway, kind: str, method: str, path: str, needed: str | None
) -> None:
    """Or, where nothing is, what lies beside it needs."""
    entered: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.append(scope["path"])

    async def nothing(*_: object) -> Message:
        raise AssertionError

    auth = Auth(
        app, authenticator=gateway.authenticator, operations=OPERATIONS, starts=FairStarts()
    )

    async def ask(headers: list[tuple[bytes, bytes]]) -> None:
        scope: Scope = {"type": kind, "method": method, "path": path, "headers": headers}
        scope["scheme"] = "http"
        context.attach(scope, nothing)  # type: ignore[arg-type]
        await auth(scope, nothing, nothing)  # type: ignore[arg-type]

    if needed is None:
        await ask([])
        assert entered == [path]
        return
    with pytest.raises(InvalidApiKey):
        await ask([])
    for scope in get_args(KeyScope):
        header = [(b"authorization", f"Bearer {await gateway.key(scope)}".encode())]
        ranks = ["usage", "billing", "view", "admin", "owner"]
        is_higher = {scope, needed} <= {*ranks} and ranks.index(scope) > ranks.index(needed)
        if scope == needed or is_higher or (scope, needed) == ("chat", "responses"):
            await ask(header)
        else:
            with pytest.raises(NotAllowed):
                await ask(header)
    assert 1 <= len(entered) <= len(ranks)


def test_no_header_is_no_token() -> None:
    assert key_in(Headers({})) is None
    with pytest.raises(InvalidApiKey):
        key_in(Headers({"authorization": "Digest x"}))


def test_a_key_may_come_where_anthropics_clients_send_it() -> None:
    assert key_in(Headers({"x-api-key": " k "})) == "k"
    assert key_in(Headers({"x-api-key": "k", "authorization": "Bearer k"})) == "k"
    for several in (
        {"x-api-key": "k", "authorization": "Bearer other"},
        [(b"x-api-key", b"k"), (b"x-api-key", b"k")],
    ):
        headers = Headers(several) if isinstance(several, dict) else Headers(raw=several)
        with pytest.raises(InvalidRequestError):
            key_in(headers)
