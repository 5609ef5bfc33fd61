"""Signing in on the pages, and the provider's tokens in the API, against a provider over HTTP."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio
from joserfc import jwt
from joserfc.jwk import RSAKey
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from engine.text.tokenizer import Tokenizer
from gateway.config import Config
from gateway.config.oidc import OidcConfig
from tenants.keys import is_public_id
from tests.gateway.engine_double import EngineDouble
from tests.gateway.oidc.provider import CLIENT, SECRET, Provider, provider
from tests.gateway.raw_http import Answer, exchange, post
from tests.gateway.serving import Gateway, chat_body, double_client, encode, make_config, served

pytestmark = pytest.mark.asyncio

ORIGIN = "http://localhost:9"
API = "https://sluice.example/api"
SAME_PAGE = {"origin": ORIGIN, "x_sluice_csrf": "1"}
OUT = "/auth/sign-out"
ADMIN = {"tenant": "acme", "roles": ["admin"], "email": "jane@acme.example"}


class Site:
    """A gateway, and the provider at which people sign in."""

    def __init__(self, gateway: Gateway, provider: Provider) -> None:
        self.gateway = gateway
        self.provider = provider

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Without a key, unless it is among the headers."""
        data = b"" if body is None else encode(body)
        request = post(self.gateway, data, path=path, **{"authorization": "", **headers})
        return await exchange(self.gateway, request.replace(b"POST", method.encode(), 1))

    async def begin(self) -> tuple[str, str]:
        """Where the browser is sent, and its cookie."""
        answer = await self.ask("GET", "/auth/sign-in?page=/admin/")
        assert answer.status == 303
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=lax", "Path=/auth/"} <= set(cookie.split("; "))
        return answer.headers["location"], cookie.partition(";")[0]

    async def come_back(self, back: dict[str, str], cookie: str) -> Answer:
        return await self.ask("GET", f"/auth/callback?{urlencode(back)}", cookie=cookie)

    async def sign_in(self, **claims: Any) -> str:
        """The cookie of a session."""
        url, cookie = await self.begin()
        answer = await self.come_back(self.provider.consent(url, "c0de", **claims), cookie)
        assert (answer.status, answer.headers["location"]) == (303, "/admin/"), answer.body
        return session_in(answer)

    async def with_token(self, token: str, path: str = "/v1/models") -> Answer:
        return await self.ask("GET", path, authorization=f"Bearer {token}")


def session_in(answer: Answer) -> str:
    """The session, which is in a cookie for each page."""
    found = [one for one in answer.cookies if "=session." in one]
    assert sorted(one.partition("=")[0] for one in found) == ["sluice", "sluice-admin"]
    for cookie in found:
        assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; "))
    return "; ".join(one.partition(";")[0] for one in found)


def configured(model_dir: Path, provider: Provider, secret_file: Path, **fields: Any) -> Config:
    secret_file.write_text(f"{SECRET}\n")
    oidc = OidcConfig(
        issuer=provider.issuer,
        client_id=CLIENT,
        client_secret_file=str(secret_file),
        public_url=ORIGIN,
        audiences=(API,),
        clock_skew_s=30,
    )
    config = make_config(model_dir)
    return msgspec.structs.replace(config, oidc=msgspec.structs.replace(oidc, **fields))


@asynccontextmanager
async def a_site(model_dir: Path, folder: Path, **fields: Any) -> AsyncIterator[Site]:
    async with provider() as made:
        config = configured(model_dir, made, folder / "secret", **fields)
        engine = double_client(config, EngineDouble(Tokenizer.load(model_dir)))
        async with served(config, engine) as gateway:
            yield Site(gateway, made)


@pytest_asyncio.fixture
async def site(model_dir: Path, tmp_path: Path) -> AsyncIterator[Site]:
    async with a_site(model_dir, tmp_path) as made:
        yield made


async def test_a_person_signs_in_works_and_signs_out(site: Site) -> None:
    assert (await site.ask("GET", "/auth/session")).json() == {
        "is_offered": True, "name": None, "id": None, "scopes": [], "keeps_conversations": False
    }  # fmt: skip
    cookie = await site.sign_in(**ADMIN)
    state = (await site.ask("GET", "/auth/session", cookie=cookie)).json()
    assert is_public_id(state.pop("id"))
    assert state == {
        "is_offered": True, "name": "jane@acme.example", "scopes": ["chat", "admin"],
        "keeps_conversations": True,
    }  # fmt: skip
    assert (await site.ask("GET", "/admin/v1/tenants", cookie=cookie)).status == 200
    made = await site.ask("POST", "/admin/v1/tenants", {"name": "new"}, cookie=cookie, **SAME_PAGE)
    assert made.status == 201
    (key,) = [
        key
        for key in await site.gateway.store.list_keys(site.gateway.tenant.id)
        if key.name == "sign-in: jane@acme.example"
    ]
    entries = await site.gateway.store.list_audit(UUID(made.json()["id"]))
    assert {entry.actor for entry in entries} == {f"key {key.public_id}"}

    chat = await site.ask("POST", "/v1/chat/completions", chat_body(), cookie=cookie, **SAME_PAGE)
    assert chat.status == 200
    await site.gateway.usage(requests=1)
    out = await site.ask("POST", OUT, cookie=cookie, **SAME_PAGE)
    assert out.status == 204
    assert [one.partition(";")[0] for one in out.cookies] == ['sluice=""', 'sluice-admin=""']


async def test_what_other_sites_send_with_the_cookie_changes_nothing(site: Site) -> None:
    cookie = await site.sign_in(**ADMIN)
    for headers in (
        {},
        {"origin": ORIGIN},
        {"x_sluice_csrf": "1"},
        {"origin": "https://evil.example", "x_sluice_csrf": "1"},
        {"origin": "null", "x_sluice_csrf": "1"},
    ):
        for path in (
            "/admin/v1/tenants",
            "/v1/chat/completions",
            "/v1/ws-tickets",
            "/auth/sign-out",
        ):
            answer = await site.ask("POST", path, {"name": "x"}, cookie=cookie, **headers)
            assert answer.status == 403, (path, headers)
    names = [tenant.name for tenant in await site.gateway.store.list_tenants()]
    assert names == ["acme"]


async def test_a_page_chats_over_a_socket(site: Site) -> None:
    cookie = await site.sign_in(**ADMIN)
    url = site.gateway.ws_url
    headers = {"cookie": cookie}
    for origin in (None, "https://evil.example"):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers=headers, origin=origin)  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403
    async with connect(url, additional_headers=headers, origin=ORIGIN) as ws:  # type: ignore[arg-type]
        assert json.loads(await ws.recv())["type"] == "ready"


async def test_revoking_a_persons_key_ends_the_session(site: Site) -> None:
    owner = ADMIN | {"roles": ["owner"]}
    cookie = await site.sign_in(**owner)
    (key,) = [one for one in await site.gateway.store.list_keys(site.gateway.tenant.id)
              if one.name.startswith("sign-in")]  # fmt: skip
    path = f"/admin/v1/tenants/{site.gateway.tenant.id}/keys/{key.public_id}"
    assert (await site.ask("DELETE", path, cookie=cookie, **SAME_PAGE)).status == 200
    answer = await site.ask("GET", "/admin/v1/tenants", cookie=cookie)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    url, attempt = await site.begin()
    back = await site.come_back(site.provider.consent(url, "c0de", **owner), attempt)
    assert (back.status, back.body) == (403, b"Signing in failed. Your access here is revoked.")


async def test_sessions_end_and_cannot_be_made_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = await site.sign_in(**ADMIN)
    body, signature = cookie.rpartition("=session.")[2].split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    forged = base64.urlsafe_b64encode(json.dumps(claims | {"expires_at": 9e9}).encode()).decode()
    _, attempt = await site.begin()
    for made_up in (
        f"{forged.rstrip('=')}.{signature}", f"{body}.", body, "", ".", "ä",
        f"{body}.{signature}.x", attempt.partition("=")[2],
    ):  # fmt: skip
        for value in (made_up, f"session.{made_up}"):
            answer = await site.ask(
                "GET",
                "/admin/v1/tenants",
                cookie=f"sluice-admin={value}".encode().decode("latin-1"),
            )
            assert answer.status == 401, value
    later = time.time() + 8 * 3600 + 1
    monkeypatch.setattr("gateway.oidc.sign_in.time", lambda: later)
    answer = await site.ask("GET", "/admin/v1/tenants", cookie=cookie)
    assert answer.error["message"] == "The sign-in has ended; sign in again."


Tamper = Callable[[dict[str, str], str], tuple[dict[str, str], str]]
TAMPERED: dict[str, tuple[Tamper, dict[str, Any], str]] = {
    "another state": (lambda back, c: ({**back, "state": "x"}, c), {}, "begun elsewhere"),
    "no state": (lambda back, c: ({"code": back["code"]}, c), {}, "begun elsewhere"),
    "no cookie": (lambda back, c: (back, "a=b"), {}, "begun elsewhere"),
    "another's cookie": (lambda back, c: (back, c[:-9] + "AAAAAAAAA"), {}, "begun elsewhere"),
    "another provider": (lambda back, c: ({**back, "iss": "http://x"}, c), {}, "another provider"),
    "a refusal": (
        lambda back, c: ({"state": back["state"], "error": "access_denied"}, c), {}, "access_denied"
    ),
    "a code of nobody": (lambda back, c: ({**back, "code": "x"}, c), {}, "refuses this sign-in"),
    "another nonce": (lambda back, c: (back, c), {"nonce": "x"}, "begun elsewhere"),
    "another client": (lambda back, c: (back, c), {"aud": "x"}, "not valid"),
    "for another party": (lambda back, c: (back, c), {"azp": "x"}, "another client"),
    "expired": (lambda back, c: (back, c), {"exp": 1}, "expired"),
    "no role": (lambda back, c: (back, c), {"roles": []}, "has no role here"),
    "another's role": (lambda back, c: (back, c), {"roles": ["janitor"]}, "has no role here"),
    "no tenant": (lambda back, c: (back, c), {"tenant": None}, "names no tenant"),
    "a strange tenant": (lambda back, c: (back, c), {"tenant": "globex"}, "'globex' of your"),
}  # fmt: skip


async def test_a_sign_in_that_is_tampered_with_fails(site: Site) -> None:
    for name, (tamper, claims, said) in TAMPERED.items():
        url, cookie = await site.begin()
        back = site.provider.consent(url, "c0de", **(ADMIN | claims))
        answer = await site.come_back(*tamper(back, cookie))
        assert 400 <= answer.status < 500, name
        assert said in answer.body.decode(), (name, answer.body)
        assert not any(one.startswith("sluice=") for one in answer.cookies), name


async def test_a_code_is_good_once_and_in_one_browser(site: Site) -> None:
    url, cookie = await site.begin()
    back = site.provider.consent(url, "c0de", **ADMIN)
    _, other = await site.begin()
    assert (await site.come_back(back, other)).status == 401
    assert (await site.come_back(back, cookie)).status == 303
    assert (await site.come_back(back, cookie)).status == 401


async def test_tokens_in_place_of_keys(site: Site) -> None:
    now, issue = int(time.time()), site.provider.token
    stranger = RSAKey.generate_key(2048, {"kid": "one"})
    public = site.provider.keys[0].as_pem(private=False)
    claims = {"aud": API, "tenant": "acme", "roles": "viewer"}

    def unsigned() -> str:
        _, body, _ = issue(**claims).split(".")
        header = base64.urlsafe_b64encode(b'{"alg":"none","kid":"one"}').decode().rstrip("=")
        return f"{header}.{body}."

    def with_its_own_key() -> str:
        header = {"alg": "RS256", "kid": "one", "jwk": stranger.as_dict(private=False)}
        whole = {"iss": site.provider.issuer, "sub": "jane", "exp": now + 300, **claims}
        return jwt.encode(header, whole, stranger)

    def confused() -> str:
        """Signed by HMAC with the public key, which everybody has."""
        whole = {"iss": site.provider.issuer, "sub": "jane", "exp": now + 300, **claims}
        parts = ({"alg": "HS256", "kid": "one"}, whole)
        signed = b".".join(base64.urlsafe_b64encode(encode(one)).rstrip(b"=") for one in parts)
        signature = hmac.digest(public, signed, "sha256")
        return f"{signed.decode()}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    good = {
        "plain": issue(**claims),
        "one of several audiences": issue(**claims | {"aud": ["x", API]}),
        "just expired": issue(**claims, exp=now - 20),
        "just issued": issue(**claims, nbf=now + 20, iat=now + 20),
    }
    for name, token in good.items():
        answer = await site.with_token(token)
        assert answer.status == 200, (name, answer.body)
    bad = {
        "unsigned": unsigned(),
        "confused": confused(),
        "with its own key": with_its_own_key(),
        "of another key": issue(**claims, key=stranger),
        "of another issuer": issue(**claims, iss="https://evil.example"),
        "for another audience": issue(**claims | {"aud": CLIENT}),
        "for nobody": issue(**claims | {"aud": None}),
        "expired": issue(**claims, exp=now - 60),
        "for ever": issue(**claims, exp=None),
        "too early": issue(**claims, nbf=now + 60),
        "of nobody": issue(**claims, sub=None),
        "cut": issue(**claims)[:-8],
        "nonsense": "a.b.c",
        "long": issue(**claims, padding="x" * 20_000),
    }
    for name, token in bad.items():
        answer = await site.with_token(token)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), name
    assert (await site.with_token(issue(**claims | {"roles": []}))).status == 403
    assert (await site.with_token(issue(**claims | {"tenant": "globex"}))).status == 403


async def test_roles_are_scopes_of_the_token_at_hand(site: Site) -> None:
    allowed = {
        "member": (200, 403, 403), "billing": (403, 200, 200), "viewer": (200, 200, 200),
        "owner": (200, 200, 200),
    }  # fmt: skip
    paths = ("/v1/models", "/admin/v1/usage", "/admin/v1/tenants")
    for role, statuses in allowed.items():
        token = site.provider.token(aud=API, tenant="acme", roles=[role])
        assert tuple([(await site.with_token(token, path)).status for path in paths]) == statuses
    # One person, one key, whatever the roles.
    names = [key.name for key in await site.gateway.store.list_keys(site.gateway.tenant.id)]
    assert names.count("sign-in: jane") == 1


async def test_claims_lead_to_tenant_and_project(model_dir: Path, tmp_path: Path) -> None:
    fields = {
        "tenant_claim": "org.name", "project_claim": "https://acme.example/team",
        "role_claim": "realm_access.roles", "roles": {"cook": ("chat",)}, "default_tenant": "acme",
    }  # fmt: skip
    async with a_site(model_dir, tmp_path, **fields) as site:
        store = site.gateway.store
        other = await store.create_tenant("other")
        kitchen = await store.create_project(other.id, "kitchen")
        claims = {
            "aud": API, "org": {"name": "other"}, "realm_access": {"roles": ["cook"]},
            "https://acme.example/team": "kitchen",
        }  # fmt: skip
        assert (await site.with_token(site.provider.token(**claims))).status == 200
        (key,) = await store.list_keys(other.id)
        assert key.project_id == kitchen.id
        claims["https://acme.example/team"] = "x"
        wrong = await site.with_token(site.provider.token(**claims))
        assert wrong.status == 403
        assert "no project 'x'" in wrong.error["message"]
        by_default = {"aud": API, "realm_access": {"roles": ["cook"]}}
        assert (await site.with_token(site.provider.token(**by_default))).status == 200


async def test_a_new_person_who_asks_often_at_once_has_one_key(site: Site) -> None:
    token = site.provider.token(aud=API, tenant="acme", roles=["viewer"], sub="crowd")
    answers = await asyncio.gather(*(site.with_token(token) for _ in range(20)))
    assert {answer.status for answer in answers} == {200}
    names = [key.name for key in await site.gateway.store.list_keys(site.gateway.tenant.id)]
    assert names.count("sign-in: crowd") == 1


async def test_keys_are_rotated_and_not_fetched_for_every_stranger(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("gateway.oidc.provider.monotonic", lambda: now[0])
    async with a_site(model_dir, tmp_path) as site:
        claims = {"aud": API, "tenant": "acme", "roles": "viewer"}
        old = site.provider.token(**claims)
        assert (await site.with_token(old)).status == 200
        assert site.provider.num_fetched == 1
        strangers = [RSAKey.generate_key(2048, {"kid": f"made up {n}"}) for n in range(2)]
        site.provider.keys.insert(0, RSAKey.generate_key(2048, {"kid": "two"}))
        new = site.provider.token(**claims)
        for stranger in strangers * 5:
            answer = await site.with_token(site.provider.token(**claims, key=stranger))
            assert answer.status == 401
        assert (await site.with_token(new)).status == 401  # Nobody has asked since.
        assert site.provider.num_fetched == 1
        now[0] += 61
        answers = await asyncio.gather(*(site.with_token(new) for _ in range(5)))
        assert {answer.status for answer in answers} == {200}
        assert site.provider.num_fetched == 2
        site.provider.keys.pop()  # the old one is withdrawn
        now[0] += 3601
        assert (await site.with_token(new)).status == 200
        assert (await site.with_token(old)).status == 401
        # A provider that is away: known keys go on, and nobody waits for it at each request.
        site.provider.is_away = True
        now[0] += 3601
        assert (await site.with_token(new)).status == 200


async def test_a_provider_that_never_was_there(model_dir: Path, tmp_path: Path) -> None:
    async with a_site(model_dir, tmp_path, issuer="http://127.0.0.1:1") as site:
        answer = await site.with_token(site.provider.token(aud=API, iss="http://127.0.0.1:1"))
        assert answer.status == 503
        assert (await site.ask("GET", "/auth/sign-in")).status == 503
        assert (await exchange(site.gateway, post(site.gateway, encode(chat_body())))).status == 200


async def test_nobody_waits_in_line_for_a_provider_that_never_answers(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.oidc.provider.TIMEOUT_S", 0.5)
    monkeypatch.setattr("gateway.oidc.provider.AGAIN_S", 600)
    num_asked = 0

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_asked
        num_asked += 1
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with a_site(model_dir, tmp_path, issuer=issuer) as site:
            token = site.provider.token(aud=API, iss=issuer)
            answers = await asyncio.gather(*(site.with_token(token) for _ in range(20)))
    assert {answer.status for answer in answers} == {503}
    assert num_asked == 1
