from __future__ import annotations

import pytest
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from gateway import context
from gateway.errors import InvalidApiKey
from gateway.middleware.auth import Auth, bearer_token
from gateway.routes.pages import public_paths
from tenants.errors import ScopeMissing
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
    for path in ("/livez", "/readyz", *public_paths()):
        expected = 308 if path == "/admin" else 200
        assert (await get(gateway, path)).status == expected, path


@pytest.mark.asyncio
async def test_a_path_with_a_slash_at_its_end_stands_for_all_below_it(gateway: Gateway) -> None:
    """Whatever the routes there ask for: a request is refused before they see it."""
    entered: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.append(scope["path"])

    async def nothing(*_: object) -> Message:
        raise AssertionError

    auth = Auth(
        app,
        authenticator=gateway.authenticator,
        public={"/open"},
        sockets={"/ws"},
        scopes={"/admin/": "admin", "/metrics": "admin"},
    )
    header = [(b"authorization", f"Bearer {gateway.api_key}".encode())]

    async def ask(kind: str, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        scope: Scope = {"type": kind, "path": path, "headers": headers}
        context.attach(scope, nothing)  # type: ignore[arg-type]
        await auth(scope, nothing, nothing)  # type: ignore[arg-type]

    for path in ("/admin/", "/admin/tenants", "/admin/tenants/x", "/metrics"):
        with pytest.raises(ScopeMissing):
            await ask("http", path, header)
    for path in ("/admin", "/administration", "/metrics/x", "/v1"):
        await ask("http", path, header)
    assert entered == ["/admin", "/administration", "/metrics/x", "/v1"]
    for kind, path in (("http", "/open"), ("websocket", "/open"), ("websocket", "/ws")):
        await ask(kind, path, [])
    with pytest.raises(InvalidApiKey):
        await ask("http", "/ws", [])
    assert entered[4:] == ["/open", "/open", "/ws"]


def test_no_header_is_no_token() -> None:
    assert bearer_token(Headers({})) is None
    with pytest.raises(InvalidApiKey):
        bearer_token(Headers({"authorization": "Digest x"}))
