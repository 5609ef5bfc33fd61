"""The whole app: which doors are open to whom, other origins, and a server that knows no drain."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.text.tokenizer import Tokenizer
from gateway.answers.event_stream import STREAM_ID_HEADER
from gateway.app import create_app
from gateway.config import TenantsConfig
from gateway.routes import pages
from gateway.routes.table import OPERATIONS
from gateway.schemas.operation import SOCKET
from tests.gateway.engine_double import EngineDouble
from tests.gateway.parts import with_journal
from tests.gateway.raw_http import Answer, exchange, get, post
from tests.gateway.serving import (
    MODEL,
    SECRETS,
    Gateway,
    chat_body,
    double_client,
    encode,
    make_config,
    served,
    served_double,
    until,
)
from tests.memory_store.store import MemoryStore

PUBLIC = {
    *("/livez", "/readyz", "/openapi.json", "/asyncapi.json"),
    *(operation.path for operation in pages.operations()),
}
SIGN_IN = {operation.path for operation in OPERATIONS if operation.path.startswith("/auth/")}
"""Open, too, but there is nothing where nobody signs in: ``tests/gateway/oidc`` knocks there."""
ID = "11111111-1111-4111-8111-111111111111"


def doors() -> Iterator[tuple[str, str]]:
    """Every method and path of the app, with something in place of what varies."""
    for operation in OPERATIONS:
        if operation.path not in PUBLIC | SIGN_IN and operation.method != SOCKET:
            path = re.sub(r"\{[^}]*\}", ID, operation.path)
            yield operation.method, path
            if operation.method == "GET":
                yield "HEAD", path


async def knock(gateway: Gateway, method: str, path: str, key: str | None) -> Answer:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    if method == "HEAD":  # an answer without its body
        method = "GET"
    return await get(gateway, path, method=method, content_length="0", **headers)


# -- who may come in


@pytest.mark.asyncio
async def test_no_route_is_open_that_is_not_on_the_list(gateway: Gateway) -> None:
    for method, path in doors():
        answer = await knock(gateway, method, path, None)
        assert answer.status == 401, (method, path)


@pytest.mark.asyncio
async def test_what_is_on_the_list_is_open(gateway: Gateway) -> None:
    for path in sorted(PUBLIC):
        answer = await get(gateway, path)
        assert answer.status in (200, 307, 308), path


@pytest.mark.asyncio
async def test_a_key_for_chats_administers_nothing(gateway: Gateway) -> None:
    paths = [(m, p) for m, p in doors() if p.startswith(("/admin/v1", "/metrics"))]
    assert len(paths) > 20
    for method, path in paths:
        answer = await knock(gateway, method, path, gateway.api_key)
        assert answer.status == 403, (method, path)


@pytest.mark.asyncio
async def test_a_key_for_usage_sees_usage_and_nothing_else(gateway: Gateway) -> None:
    key = await gateway.key("usage")
    allowed = {
        path for method, path in doors() if (await knock(gateway, method, path, key)).status != 403
    }
    assert allowed == {"/admin/v1/usage", "/admin/v1/usage/requests"}


@pytest.mark.asyncio
async def test_an_admin_key_chats_only_if_it_may(gateway: Gateway) -> None:
    key = await gateway.key("admin")
    answer = await exchange(gateway, post(gateway, encode(chat_body()), key=key))
    assert (answer.status, answer.error["code"]) == (403, "permission_denied")


# -- pages of other origins

ORIGIN = "https://app.example"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/chat/completions", "authorization,content-type,idempotency-key"),
        # as the openai and the anthropic package for JavaScript send them
        (
            "/v1/responses",
            "authorization,content-type,openai-organization,x-stainless-arch,x-stainless-lang,"
            "x-stainless-os,x-stainless-package-version,x-stainless-retry-count,"
            "x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout",
        ),
        (
            "/v1/messages",
            "anthropic-beta,anthropic-dangerous-direct-browser-access,anthropic-version,"
            "content-type,x-api-key,x-stainless-arch,x-stainless-helper-method,x-stainless-lang",
        ),
    ],
)
@pytest.mark.parametrize("allowed", [ORIGIN, "*"])
@pytest.mark.asyncio
async def test_an_allowed_origin_may_ask_without_a_key_whether_it_may(
    model_dir: Path, allowed: str, path: str, headers: str
) -> None:
    async with served_double(model_dir, allowed_origins=[allowed]) as (gateway, _):
        answer = await get(
            gateway,
            path,
            method="OPTIONS",
            origin=ORIGIN,
            access_control_request_method="POST",
            access_control_request_headers=headers,
        )
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] in (ORIGIN, "*")
        assert "POST" in answer.headers["access-control-allow-methods"]
        may_be_sent = answer.headers["access-control-allow-headers"].lower().split(",")
        assert set(headers.split(",")) <= {name.strip() for name in may_be_sent}


@pytest.mark.asyncio
async def test_an_allowed_origin_reads_answers_errors_and_their_headers(model_dir: Path) -> None:
    async with served_double(model_dir, allowed_origins=[ORIGIN]) as (gateway, _):
        body = encode(chat_body())
        good = await exchange(gateway, post(gateway, body, origin=ORIGIN))
        bad = await exchange(gateway, post(gateway, body, key="wrong", origin=ORIGIN))
    assert (good.status, bad.status) == (200, 401)
    for answer in (good, bad):
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = answer.headers["access-control-expose-headers"].lower()
        for name in (
            *("x-request-id", "request-id", "retry-after", "x-sluice-ignored"),
            *(STREAM_ID_HEADER, "x-ratelimit-remaining"),
        ):
            assert name in exposed


@pytest.mark.asyncio
async def test_another_origin_is_not_let_in(model_dir: Path) -> None:
    async with served_double(model_dir, allowed_origins=[ORIGIN]) as (gateway, _):
        body = encode(chat_body())
        answer = await exchange(gateway, post(gateway, body, origin="https://evil.example"))
        assert "access-control-allow-origin" not in answer.headers
        asked = await get(
            gateway,
            "/v1/chat/completions",
            method="OPTIONS",
            origin="https://evil.example",
            access_control_request_method="POST",
        )
        assert asked.status == 400


@pytest.mark.asyncio
async def test_without_the_setting_no_origin_is(gateway: Gateway) -> None:
    answer = await exchange(gateway, post(gateway, encode(chat_body()), origin=ORIGIN))
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


# -- what is kept for a while


def noting(name: str, whole: Any, kept: list[tuple[str, float]]) -> Any:
    """``whole``, which is given a retention; that is noted under ``name``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, timedelta)]
        kept.extend((name, retention.total_seconds()) for retention in given)
        return whole(*args, **kwargs)

    return call


@pytest.mark.asyncio
async def test_each_thing_is_kept_for_as_long_as_the_settings_say(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(model_dir, stream_retention_s=111.0, idempotency_retention_s=222.0)
    tenants = TenantsConfig(response_retention_s=333.0)
    config = msgspec.structs.replace(config, tenants=tenants)
    double = EngineDouble(Tokenizer.load(model_dir))
    kept: list[tuple[str, float]] = []
    async with served(config, double_client(config, double)) as gateway:
        shared = gateway.store.shared
        for name in ("put_stream", "claim", "put_response", "lineage"):
            monkeypatch.setattr(shared, name, noting(name, getattr(shared, name), kept))
        await exchange(gateway, post(gateway, encode(chat_body(stream=True, resumable=True))))
        await until(lambda: kept == [("put_stream", 111.0)])
        kept.clear()
        await exchange(gateway, post(gateway, encode(chat_body()), idempotency_key="k"))
        await until(lambda: kept == [("claim", 222.0), ("put_stream", 222.0)])
        kept.clear()
        async with gateway.openai() as client:
            first = await client.responses.create(model=MODEL, input="hi")
            await client.responses.create(model=MODEL, input="hi", previous_response_id=first.id)
        assert kept == [("put_response", 333.0), ("lineage", 333.0), ("put_response", 333.0)]


# -- the lifespan alone


@pytest.mark.asyncio
async def test_the_lifespan_of_any_server_starts_and_closes_everything(
    model_dir: Path, tmp_path: Path
) -> None:
    config = with_journal(make_config(model_dir), tmp_path)
    double = EngineDouble(Tokenizer.load(model_dir))
    engine = double_client(config, double)
    await engine.start()
    app = create_app(config, engine=engine, store=MemoryStore(), secrets=SECRETS)
    before = asyncio.all_tasks()
    async with app.router.lifespan_context(app):
        assert "revocations" in {task.get_name() for task in asyncio.all_tasks() - before}
        assert not app.state.services.lifecycle.draining
        assert engine.ready
    assert app.state.services.lifecycle.draining
    assert not engine.ready
    await until(lambda: asyncio.all_tasks() <= before)
