"""``[oidc]``: the settings of sign-in by OpenID Connect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.errors import ConfigError
from tenants.types import Scope

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Those with which a provider signs by a key of its own. None and HMAC are not among them."""
Seconds = Annotated[float, msgspec.Meta(gt=0)]
ROLES: Mapping[str, tuple[Scope, ...]] = {
    "owner": ("chat", "owner"),
    "admin": ("chat", "admin"),
    "viewer": ("chat", "view"),
    "billing": ("billing",),
    "member": ("chat",),
}
_LOCAL = ("localhost", "127.0.0.1", "::1")


class OidcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sign-in by a provider of OpenID Connect, for the pages; its tokens, for the API."""

    issuer: str | None = None
    """The provider, such as ``https://login.example.com/realms/acme``, whose
    ``/.well-known/openid-configuration`` says the rest. By default nobody signs in."""
    client_id: str | None = None
    """What the provider calls this server; its redirect URI is ``/auth/callback`` below
    ``public_url``. Without it there is no sign-in on the pages."""
    client_secret_file: str | None = None
    """File of the client's secret; a client without one is proven by PKCE alone."""
    public_url: str | None = None
    """Where browsers reach this server, such as ``https://sluice.example.com``."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    """What is asked of the provider."""
    audiences: tuple[str, ...] = ()
    """The values of ``aud`` with which the provider's tokens are taken in place of API keys; by
    default none are."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    """How tokens may be signed."""
    tenant_claim: str = "tenant"
    """The claim that names a person's tenant; a dot leads into an object: ``org.name``."""
    default_tenant: str | None = None
    """The tenant of those who have no such claim; by default they are refused."""
    project_claim: str | None = None
    """The claim that names the project; by default it is the tenant's default one."""
    role_claim: str = "roles"
    """The claim with a person's roles: a list of texts, or one."""
    roles: dict[str, tuple[Scope, ...]] = msgspec.field(default_factory=lambda: dict(ROLES))
    """What each role may do, in scopes of API keys. All but ``member`` by default
    reach beyond the person's tenant."""
    clock_skew_s: Annotated[int, msgspec.Meta(ge=0, le=600)] = 60
    """By how much the provider's clock may differ."""
    session_s: Seconds = 8 * 3600.0
    """How long a sign-in on the pages lasts."""
    jwks_refetch_s: Seconds = 60.0
    """How long after the provider's keys were fetched they are not fetched again for a key that is
    not among them."""

    def __post_init__(self) -> None:
        if self.issuer is None:
            for name in ("client_id", "audiences"):
                if getattr(self, name):
                    raise ConfigError(f"oidc.issuer is missing; oidc.{name} needs it")
            return
        _check_url("issuer", self.issuer)
        if self.client_id is None and not self.audiences:
            raise ConfigError(
                "oidc.issuer needs oidc.client_id, to sign in on the pages, or oidc.audiences, to "
                "take its tokens in the API"
            )
        if self.client_id is not None:
            if self.public_url is None:
                raise ConfigError("oidc.public_url is missing; oidc.client_id needs it")
            _check_url("public_url", self.public_url)
            if urlsplit(self.public_url).path.strip("/"):
                raise ConfigError("oidc.public_url must have no path; the pages are at /")
        if "openid" not in self.scopes:
            raise ConfigError("oidc.scopes must name openid")

    @property
    def origin(self) -> str:
        """As browsers write that of the pages."""
        assert self.public_url is not None
        return self.public_url.rstrip("/").lower()

    @property
    def redirect_uri(self) -> str:
        return f"{self.origin}/auth/callback"

    @property
    def is_secure(self) -> bool:
        return self.origin.startswith("https://")


def _check_url(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme != "http" or parts.hostname not in _LOCAL:
        raise ConfigError(
            f"oidc.{name}: {url!r} must begin with https:// (http:// is for localhost only)"
        )
