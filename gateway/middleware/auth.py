"""Authenticates requests by API key. Only listed paths are served without one."""

from __future__ import annotations

from collections.abc import Mapping, Set

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import context
from gateway.errors import InvalidApiKey, InvalidRequestError
from tenants.access import require_scope
from tenants.authenticator import Authenticator
from tenants.types import Scope as KeyScope


def bearer_token(headers: Headers) -> str | None:
    """The key in ``Authorization: Bearer KEY``. Raises ``InvalidApiKey`` for another scheme, and
    ``InvalidRequestError`` for several headers: a proxy might have checked another one."""
    found = headers.getlist("authorization")
    if not found:
        return None
    if len(found) > 1:
        raise InvalidRequestError("Send one Authorization header.", param="authorization")
    header = found[0]
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise InvalidApiKey("The Authorization header must be: Bearer YOUR_API_KEY.")
    return token.strip()


class Auth:
    """Sets the principal of a request, or raises ``ApiError``.

    It looks at ``scope["path"]`` only, never at a URL, which the client's Host header can change.
    WebSockets at the paths of ``sockets`` authenticate themselves, after the handshake.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        public: Set[str],
        sockets: Set[str] = frozenset(),
        scopes: Mapping[str, KeyScope],
        default_scope: KeyScope = "chat",
    ) -> None:
        """``public``: the paths that need no key. ``scopes``: the scope that a path needs, if not
        ``default_scope``; a path with a slash at its end stands for all below it. Routes may
        require more."""
        self._app = app
        self._authenticator = authenticator
        self._public = {"http": public, "websocket": public | sockets}
        self._scopes = scopes
        self._default_scope = default_scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        public = self._public.get(scope["type"])
        if public is not None and scope["path"] not in public:
            await self._authorize(scope)
        await self._app(scope, receive, send)

    async def _authorize(self, scope: Scope) -> None:
        token = bearer_token(Headers(scope=scope))
        if token is None:
            raise InvalidApiKey(
                "You didn't provide an API key. Send it in the Authorization header: "
                "Bearer YOUR_API_KEY."
            )
        principal = await self._authenticator.authenticate(token)
        require_scope(principal.key, self._scope_of(scope["path"]))
        context.of(scope).principal = principal

    def _scope_of(self, path: str) -> KeyScope:
        for known, scope in self._scopes.items():
            if path == known or (known.endswith("/") and path.startswith(known)):
                return scope
        return self._default_scope
