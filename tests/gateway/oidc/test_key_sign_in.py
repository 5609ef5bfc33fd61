"""Signing in on the pages with an API key: a cookie that no script can read stands for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.oidc.test_sign_in import a_site
from tests.gateway.raw_http import Answer, exchange, post
from tests.gateway.serving import Gateway, chat_body, encode

pytestmark = pytest.mark.asyncio

OWN = {"host": "sluice.example", "origin": "http://sluice.example", "x_sluice_csrf": "1"}
SESSION = "/auth/session"


async def ask(gateway: Gateway, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    data = b"" if body is None else encode(body)
    request = post(gateway, data, path=path, **{"authorization": "", **headers})
    return await exchange(gateway, request.replace(b"POST", method.encode(), 1))


async def sign_in(gateway: Gateway, key: str, page: str = "/", **headers: str) -> Answer:
    path = f"{SESSION}?page={page}"
    return await ask(gateway, "POST", path, {"api_key": key}, **{**OWN, **headers})


def cookie_in(answer: Answer) -> str:
    (cookie,) = answer.cookies
    return cookie.partition(";")[0]


async def test_a_key_becomes_a_cookie_that_stands_for_it(gateway: Gateway) -> None:
    answer = await sign_in(gateway, gateway.api_key)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    found = answer.json()
    assert found.pop("name")
    assert found.pop("scopes")
    assert found.pop("id") == gateway.api_key[7:19]
    assert found == {"is_offered": False, "keeps_conversations": True}
    (cookie,) = answer.cookies
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert gateway.api_key[20:] not in cookie
    held = cookie_in(answer)
    assert (await ask(gateway, "GET", SESSION, cookie=held)).json() == answer.json()
    chat = await ask(gateway, "POST", "/v1/chat/completions", chat_body(), cookie=held, **OWN)
    assert chat.status == 200
    await gateway.usage(requests=1)
    out = await ask(gateway, "POST", "/auth/sign-out", cookie=held, **OWN)
    assert [one.partition(";")[0] for one in out.cookies] == ['sluice=""', 'sluice-admin=""']


async def test_a_page_that_is_not_ours_can_neither_sign_in_nor_use_it(gateway: Gateway) -> None:
    """One that could sign its visitors in with its own key would read what they write then."""
    held = cookie_in(await sign_in(gateway, gateway.api_key))
    for changed in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://sluice.example.evil.example"},
        {"origin": ""},
        {"host": "other.example"},
    ):
        refused = await sign_in(gateway, gateway.api_key, **changed)
        assert (refused.status, refused.cookies) == (403, []), changed
        for path in ("/v1/chat/completions", "/v1/conversations", "/auth/sign-out"):
            answer = await ask(gateway, "POST", path, {}, cookie=held, **{**OWN, **changed})
            assert answer.status == 403, (path, changed)
    bare = {name: value for name, value in OWN.items() if name != "x_sluice_csrf"}
    answer = await ask(gateway, "POST", SESSION, {"api_key": gateway.api_key}, **bare)
    assert answer.status == 403


async def test_only_a_good_key_signs_in(gateway: Gateway) -> None:
    held = cookie_in(await sign_in(gateway, gateway.api_key)).partition("=")[2]
    for key in ("", "sk-slc-x", gateway.api_key[:-1] + "~", held):
        answer = await sign_in(gateway, key)
        assert (answer.status, answer.cookies) == (401, []), key
    wrong = await ask(gateway, "POST", SESSION, {"key": "x"}, **OWN)
    assert (wrong.status, wrong.error["param"]) == (400, "key")


async def test_each_page_has_a_sign_in_of_its_own(gateway: Gateway) -> None:
    """Who administrates in one tab and chats in another uses two keys."""
    chat = cookie_in(await sign_in(gateway, gateway.api_key))
    admin = cookie_in(await sign_in(gateway, gateway.api_key, "/admin/"))
    assert (chat.partition("=")[0], admin.partition("=")[0]) == ("sluice", "sluice-admin")
    assert (await ask(gateway, "GET", "/v1/models", cookie=chat)).status == 200
    assert (await ask(gateway, "GET", "/v1/models", cookie=admin)).status == 401
    assert (await ask(gateway, "GET", "/admin/v1/tenants", cookie=chat)).status == 401
    assert (await ask(gateway, "GET", "/admin/v1/tenants", cookie=admin)).status == 403


async def test_revoking_the_key_ends_the_sign_in(gateway: Gateway) -> None:
    held = cookie_in(await sign_in(gateway, gateway.api_key))
    (key,) = await gateway.store.list_keys(gateway.tenant.id)
    await gateway.store.revoke_key(key.public_id)
    gateway.authenticator.forget()
    assert (await ask(gateway, "GET", SESSION, cookie=held)).json()["name"] is None
    answer = await ask(gateway, "GET", "/v1/models", cookie=held)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


async def test_over_https_the_cookie_is_kept_to_it(model_dir: Path, tmp_path: Path) -> None:
    origin = "https://sluice.example"
    async with a_site(model_dir, tmp_path, public_url=origin) as site:
        headers = {"host": "inner", "origin": origin}
        answer = await sign_in(site.gateway, site.gateway.api_key, **headers)
        (cookie,) = answer.cookies
        assert cookie.startswith("__Host-sluice=session.")
        assert {"Secure", "HttpOnly", "Path=/"} <= set(cookie.split("; "))
        held = cookie_in(answer)
        assert (await ask(site.gateway, "GET", "/v1/models", cookie=held)).status == 200
        plain = held.removeprefix("__Host-")  # A neighbouring host could have set this one.
        assert (await ask(site.gateway, "GET", "/v1/models", cookie=plain)).status == 401
