"""A provider of OpenID Connect: where it is reached, its keys, and the tokens that it signs.

What it says of itself and its keys are fetched when they are needed and kept. A token with a key
that is not among them has these fetched again, but not more often than ``oidc.jwks_refetch_s``, so
that made-up tokens cannot have the provider flooded. While the provider is away, the known keys go
on.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import monotonic, time
from typing import Any, TypeVar
from urllib.parse import quote_plus, urlencode

import httpx2
import msgspec
from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jwk import KeySet

from gateway import outbound
from gateway.config.oidc import OidcConfig
from gateway.errors import ConfigError, InvalidApiKey, Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEYS_FOR_S = 3600.0
"""How long keys are used before they are fetched anew: one that the provider has withdrawn is
trusted for as long."""
TIMEOUT_S = 10.0
AGAIN_S = 1.0
"""After keys could not be fetched, of which none are known. Those who wait for them have an answer
then: one after the other they would wait ``TIMEOUT_S`` each."""
MAX_TOKEN = 16 * 1024
"""Characters."""


class Metadata(msgspec.Struct, frozen=True):
    """What a provider says of itself (OpenID Connect Discovery)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str | None = None
    id_token_signing_alg_values_supported: tuple[str, ...] = ()


class ProviderUnusable(Unavailable):
    """It does not answer as it should."""

    def __init__(self, reason: str) -> None:
        """reason: for the operator; clients are not told."""
        super().__init__("The sign-in provider cannot be used at the moment.")
        self.reason = reason


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str


class Provider:
    """Raises ``InvalidApiKey`` for a token that is no good, and ``ProviderUnusable`` where the
    provider is needed and does not answer as it should."""

    def __init__(self, config: OidcConfig) -> None:
        """Raises ``ConfigError`` if the client's secret cannot be read."""
        assert config.issuer is not None
        self._config = config
        self._issuer = config.issuer
        self._secret = _secret(config.client_secret_file)
        self._metadata: Metadata | None = None
        self._keys: KeySet | None = None
        self._fetched_at = -math.inf
        self._failed_at = -math.inf
        self._fetching = asyncio.Lock()
        self._client: httpx2.AsyncClient | None = None
        self.ahead_s: float | None = None
        """By how much its clock was ahead of ours when it last answered, to the second; None if it
        does not say."""

    async def metadata(self) -> Metadata:
        if self._metadata is None:
            url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            found = self._decoded(await self._fetch("GET", url), Metadata)
            if found.issuer != self._issuer:
                raise self._away(f"it calls itself {found.issuer!r}, not as oidc.issuer does")
            self._metadata = found
        return self._metadata

    async def authorization_url(self, *, state: str, nonce: str, challenge: str) -> str:
        """Where a browser begins to sign in. challenge: the SHA-256 of the verifier (PKCE)."""
        query = {
            "response_type": "code",
            "client_id": self._config.client_id,
            "redirect_uri": self._config.redirect_uri,
            "scope": " ".join(self._config.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = (await self.metadata()).authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def exchange(self, code: str, *, verifier: str, nonce: str) -> Mapping[str, Any]:
        """The claims of the ID token that a code stands for."""
        assert self._config.client_id is not None
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._config.redirect_uri,
            "client_id": self._config.client_id,
            "code_verifier": verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded"}
        if self._secret is not None:
            # Both are encoded as in a form first (RFC 6749, section 2.3.1).
            pair = f"{quote_plus(self._config.client_id)}:{quote_plus(self._secret)}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        endpoint = (await self.metadata()).token_endpoint
        answer = await self._fetch("POST", endpoint, urlencode(form).encode(), headers)
        if 400 <= answer.status_code < 500:
            logger.warning("the provider refuses a code: %s", answer.text[:300])
            raise InvalidApiKey("The provider refuses this sign-in; begin again.")
        tokens = self._decoded(answer, _Tokens)
        claims = await self.verify(tokens.id_token, audiences=(self._config.client_id,))
        if claims.get("nonce") != nonce:
            raise InvalidApiKey("This sign-in was begun elsewhere; begin again.")
        if claims.get("azp", self._config.client_id) != self._config.client_id:
            raise InvalidApiKey("The provider's token is for another client.")
        return claims

    async def verify(self, token: str, *, audiences: tuple[str, ...]) -> Mapping[str, Any]:
        """The claims of a token that the provider has signed for one of these audiences."""
        if len(token) > MAX_TOKEN:
            raise InvalidApiKey(f"The token has more than {MAX_TOKEN} characters.")
        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError):
            raise InvalidApiKey("The token is malformed.") from None
        if header.get("alg") not in self._config.algorithms:
            raise InvalidApiKey("The token is signed in a way that oidc.algorithms does not name.")
        keys = await self.keys(header.get("kid"))
        registry = jwt.JWTClaimsRegistry(
            leeway=self._config.clock_skew_s,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "values": list(audiences)},
            sub={"essential": True},
            exp={"essential": True},
        )
        try:
            decoded = jwt.decode(token, keys, algorithms=list(self._config.algorithms))
            registry.validate(decoded.claims)
        except ExpiredTokenError:
            raise InvalidApiKey("The token has expired.") from None
        except (JoseError, ValueError) as error:
            raise InvalidApiKey(f"The token is not valid: {error}.") from None
        return decoded.claims

    async def keys(self, kid: object = None) -> KeySet:
        """The provider's keys, with that of this id if there is one."""
        age_s = monotonic() - self._fetched_at
        known = self._keys is not None and _has(self._keys, kid)
        if (known and age_s < KEYS_FOR_S) or (
            self._keys is not None and not known and age_s < self._config.jwks_refetch_s
        ):
            assert self._keys is not None
            return self._keys
        async with self._fetching:
            if monotonic() - self._fetched_at < min(age_s, self._config.jwks_refetch_s):
                assert self._keys is not None  # Another task has fetched them meanwhile.
                return self._keys
            if self._keys is None and monotonic() - self._failed_at < AGAIN_S:
                raise ProviderUnusable("its keys could not be read a moment ago")
            try:
                uri = (await self.metadata()).jwks_uri
                answer = await self._fetch("GET", uri)
                self._keys = KeySet.import_key_set(self._decoded(answer, dict[str, Any]))  # type: ignore[arg-type]
            except (Unavailable, JoseError, ValueError, KeyError, TypeError) as error:
                if self._keys is None:
                    self._failed_at = monotonic()
                    raise self._away(f"its keys cannot be read: {error}") from None
                logger.warning("the provider's keys stay as they are: %s", error)
            self._fetched_at = monotonic()
            return self._keys

    async def _fetch(
        self,
        method: str,
        url: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        if self._client is None:
            self._client = outbound.client(outbound.EVERYWHERE, max_connections=8)
        try:
            answer = await outbound.fetch(
                self._client, method, url, content=content, headers=headers, timeout_s=TIMEOUT_S
            )
        except (httpx2.HTTPError, TimeoutError) as error:
            raise self._away(f"{url}: {error or type(error).__name__}") from None
        with contextlib.suppress(ValueError):
            self.ahead_s = (
                parsedate_to_datetime(answer.headers.get("date", "")).timestamp() - time()
            )
        return answer

    def _decoded(self, answer: httpx2.Response, kind: type[T]) -> T:
        if answer.status_code != 200:
            raise self._away(f"{answer.url} answers {answer.status_code}")
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise self._away(f"{answer.url}: {error}") from None

    def _away(self, reason: str) -> ProviderUnusable:
        logger.warning("the provider %s cannot be used: %s", self._issuer, reason)
        return ProviderUnusable(reason)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _has(keys: KeySet, kid: object) -> bool:
    return any(key.kid == kid for key in keys.keys) or (kid is None and len(keys.keys) == 1)


def _secret(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"oidc.client_secret_file: {path}: {error.strerror}") from None
