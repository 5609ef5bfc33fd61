"""From somebody who has signed in on a page, or a token of the provider, to a principal.

One signs in with an API key, or at the provider if there is one. A person of the provider is an API
key that nobody has the text of: it is made at the first sign-in, belongs to the tenant and project
that the claims name, and has limits, usage and an audit trail as any other. Revoking it ends all
that the person has open. What the person may do follows from the claims of the token at hand, not
from the key.

    page      cookie with a session: who, with which scopes, until when, and our signature; each
              page has its own, as people chat and administrate with different keys
    API       the provider's token as the bearer, for one of ``oidc.audiences``
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope as AsgiScope

from gateway.config.oidc import OidcConfig
from gateway.errors import InvalidApiKey, PermissionDenied
from tenants import keys
from tenants.authenticator import DEFAULT_BOUNDS, Authenticator, CacheBounds
from tenants.errors import AuthenticationFailed, InvalidValue, ObjectExists, ObjectNotFound
from tenants.last_used import LastUsed
from tenants.names import KEY_HASH_BYTES
from tenants.store import Store
from tenants.types import Principal, Scope

if TYPE_CHECKING:
    from gateway.oidc.provider import Provider

SESSION = "session."
"""What a session begins with where a key could stand."""
SIGN_IN_S = 600.0
"""How long a person may take at the provider."""
KEY_SESSION_S = 30 * 86_400.0
"""How long a sign-in with an API key lasts, unless the key ends before."""
ADMIN_PAGE = "/admin/"
PAGES = ("/", ADMIN_PAGE)

T = TypeVar("T", bound=msgspec.Struct)


class Session(msgspec.Struct, frozen=True):
    """A sign-in on the pages, as its cookie has it."""

    public_id: str
    scopes: tuple[Scope, ...]
    name: str
    expires_at: float


class Attempt(msgspec.Struct, frozen=True):
    """A sign-in that has been begun, as the browser's cookie has it until it is done."""

    state: str
    nonce: str
    verifier: str
    page: str
    expires_at: float

    @classmethod
    def begin(cls, page: str) -> Attempt:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, page, time() + SIGN_IN_S)

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class _Person(msgspec.Struct, frozen=True):
    """Who the claims say somebody is."""

    public_id: str
    tenant: str
    project: str | None
    name: str
    scopes: tuple[Scope, ...]


class SignIn(Authenticator):
    """An ``Authenticator`` that knows sessions and the provider's tokens beside API keys."""

    def __init__(
        self,
        config: OidcConfig,
        store: Store,
        pepper: bytes,
        bounds: CacheBounds = DEFAULT_BOUNDS,
        last_used: LastUsed | None = None,
    ) -> None:
        """pepper: the deployment's secret, which signs sessions too. Raises ``ConfigError`` as
        ``Provider`` does."""
        super().__init__(store, pepper, bounds, last_used=last_used)
        self.config = config
        self.provider: Provider | None = None
        if config.issuer is not None:
            # Only now, as what checks tokens takes 0.1 s of each start.
            from gateway.oidc.provider import Provider

            self.provider = Provider(config)

    def cookie(self, page: str, scope: AsgiScope) -> str:
        """The name of the cookie of a page's session, for a request of that page. Over HTTPS it has
        the prefix by which browsers keep it to this host and to HTTPS."""
        name = "sluice-admin" if page == ADMIN_PAGE else "sluice"
        return f"__Host-{name}" if self.is_secure(scope) else name

    def is_secure(self, scope: AsgiScope) -> bool:
        """Whether the browser came by HTTPS."""
        if self.config.public_url is not None:
            return self.config.is_secure
        return scope["scheme"] in ("https", "wss")

    def is_own_page(self, headers: Headers) -> bool:
        """Whether a request's ``Origin`` says that one of our pages has sent it."""
        origin = headers.get("origin", "").lower()
        return is_same_origin(origin, headers) or (
            self.config.public_url is not None and origin == self.config.origin
        )

    async def authenticate(self, text: str) -> Principal:
        """As ``Authenticator.authenticate``; raises also ``InvalidApiKey``, ``PermissionDenied``
        and ``Unavailable``."""
        if text.startswith(SESSION):
            session = self.session(text)
            if session is None:
                raise InvalidApiKey("The sign-in has ended; sign in again.")
            return self._seen(await self.check(session.public_id), session.scopes)
        if (
            self.provider is not None and self.config.audiences and text.count(".") == 2
        ):  # A key has no dot.
            claims = await self.provider.verify(text, audiences=self.config.audiences)
            person = self._person(claims)
            return self._seen(await self._found(person), person.scopes)
        return await super().authenticate(text)

    def _seen(self, principal: Principal, scopes: tuple[Scope, ...]) -> Principal:
        if self._last_used is not None:
            self._last_used.note(principal.key.id)
        key = msgspec.structs.replace(principal.key, scopes=scopes)
        return msgspec.structs.replace(principal, key=key)

    async def start_session(self, claims: Mapping[str, Any]) -> str:
        """The session of somebody who has signed in. Raises as ``authenticate`` does."""
        person = self._person(claims)
        try:
            await self._found(person)
        except AuthenticationFailed as error:  # There is no key that the person could mend.
            raise PermissionDenied(f"Your access here is {error.reason}.") from None
        ends = time() + self.config.session_s
        return SESSION + self.seal(Session(person.public_id, person.scopes, person.name, ends))

    async def start_key_session(self, api_key: str) -> str:
        """The session of somebody who has the key. Raises as ``Authenticator.authenticate``."""
        key = (await super().authenticate(api_key)).key
        ends = time() + KEY_SESSION_S
        return SESSION + self.seal(Session(key.public_id, key.scopes, key.name, ends))

    def session(self, text: str | None) -> Session | None:
        """The session that a text is, if it is one that goes on."""
        if text is None or not text.startswith(SESSION):
            return None
        return self.unseal(text.removeprefix(SESSION), Session)

    def seal(self, value: msgspec.Struct) -> str:
        """A struct as a text with our signature, for a cookie."""
        body = msgspec.json.encode(value)
        parts = body, self._signature(type(value).__name__, body)
        return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)

    def unseal(self, text: str, kind: type[T]) -> T | None:
        """What ``seal`` was given; None if it was not given this, or its time is over."""
        try:
            body, signature = (
                base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
                for part in text.encode("ascii").decode().split(".")
            )
        except (binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(signature, self._signature(kind.__name__, body)):
            return None
        value = msgspec.json.decode(body, type=kind)
        return value if getattr(value, "expires_at", 0.0) > time() else None

    def _signature(self, what: str, body: bytes) -> bytes:
        key = hmac.digest(self._pepper, f"sluice sign-in, {what}".encode(), "sha256")
        return hmac.digest(key, body, "sha256")

    def _person(self, claims: Mapping[str, Any]) -> _Person:
        config = self.config
        tenant = _text(_claim(claims, config.tenant_claim)) or config.default_tenant
        if tenant is None:
            raise PermissionDenied(
                f"Your sign-in names no tenant; its provider sends one in {config.tenant_claim!r}."
            )
        project = None
        if config.project_claim is not None:
            project = _text(_claim(claims, config.project_claim))
        given = _claim(claims, config.role_claim)
        roles = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        scopes = dict.fromkeys(
            scope for role in roles if isinstance(role, str) for scope in config.roles.get(role, ())
        )
        if not scopes:
            raise PermissionDenied(
                f"Your sign-in has no role here; its provider sends roles in {config.role_claim!r}."
            )
        name = next(
            (
                text
                for claim in ("email", "preferred_username", "name", "sub")
                if (text := _text(claims.get(claim))) is not None
            ),
            "",
        )
        identity = msgspec.json.encode([claims["iss"], claims["sub"], tenant, project])
        return _Person(
            public_id=keys.public_id_of(identity, self._pepper),
            tenant=tenant,
            project=project,
            name=name[:150],
            scopes=tuple(scopes),
        )

    async def _found(self, person: _Person) -> Principal:
        try:
            return await self.check(person.public_id)
        except AuthenticationFailed as error:
            if error.reason != "unknown":
                raise
        await self._make(person)
        self.forget(person.public_id)
        return await self.check(person.public_id)

    async def _make(self, person: _Person) -> None:
        try:
            tenant = await self._store.get_tenant(person.tenant)
        except (ObjectNotFound, InvalidValue):
            raise PermissionDenied(
                f"The tenant {person.tenant[:64]!r} of your sign-in is not here."
            ) from None
        project_id = None
        if person.project is not None:
            projects = await self._store.list_projects(tenant.id, search=person.project)
            project_id = next((one.id for one in projects if one.name == person.project), None)
            if project_id is None:
                raise PermissionDenied(
                    f"The tenant has no project {person.project[:64]!r}, as your sign-in names it."
                )
        with contextlib.suppress(ObjectExists):  # Another request of the person was quicker.
            await self._store.create_key(
                tenant.id,
                public_id=person.public_id,
                key_hash=os.urandom(KEY_HASH_BYTES),  # There is no text that has it.
                name=f"sign-in: {person.name}",
                scopes=person.scopes,
                project_id=project_id,
            )


def is_same_origin(origin: str, headers: Headers) -> bool:
    """Whether an origin in lower case is that of the host which the request names."""
    scheme, _, authority = origin.partition("://")
    return scheme in ("http", "https") and authority == headers.get("host", "").lower()


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """A claim by its whole name, or by a path into objects."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
