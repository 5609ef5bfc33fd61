"""Finds the operation that a request asks for, and authenticates the request by its API key."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import context
from gateway.concurrency.fair_starts import FairStarts
from gateway.errors import InvalidApiKey, InvalidRequestError, PermissionDenied
from gateway.oidc.sign_in import ADMIN_PAGE, SignIn
from gateway.schemas.operation import SOCKET, Operation
from tenants.access import require_scope
from tenants.types import Scope as KeyScope

CSRF_HEADER = "x-sluice-csrf"


def key_in(headers: Headers) -> str | None:
    """The key in ``Authorization: Bearer KEY`` or in ``x-api-key: KEY``, where Anthropic's clients
    send it. Raises ``InvalidApiKey`` for another scheme, and ``InvalidRequestError`` for several:
    a proxy might have checked another one."""
    found, plain = headers.getlist("authorization"), headers.getlist("x-api-key")
    keys = {key.strip() for key in plain}
    if len(found) > 1 or len(plain) > 1:
        name = "Authorization" if len(found) > 1 else "x-api-key"
        raise InvalidRequestError(f"Send one {name} header.", param=name.lower())
    for header in found:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise InvalidApiKey("The Authorization header must be: Bearer YOUR_API_KEY.")
        keys.add(token.strip())
    if len(keys) > 1:
        raise InvalidRequestError(
            "It differs from the key in the Authorization header; send one of them.",
            param="x-api-key",
        )
    return next(iter(keys), None)


def credential_in(scope: Scope, sign_in: SignIn) -> str | None:
    """The key in the headers of a request, or else the session of a page.

    A browser adds a session's cookie to whatever any page asks for. So what may change something
    must come from our own pages. Raises as ``check_own_page`` and ``key_in``.
    """
    headers = Headers(scope=scope)
    key = key_in(headers)
    if key is not None:
        return key
    page = ADMIN_PAGE if scope["path"].startswith(ADMIN_PAGE) else "/"
    session = cookie_parser(headers.get("cookie", "")).get(sign_in.cookie(page, scope))
    if session and scope.get("method") not in ("GET", "HEAD"):
        check_own_page(scope, sign_in)
    return session or None


def check_own_page(scope: Scope, sign_in: SignIn) -> None:
    """Raise ``PermissionDenied`` unless one of our pages sends this: with its ``Origin`` and, but
    for WebSockets, a header that no other page can set."""
    headers = Headers(scope=scope)
    if not sign_in.is_own_page(headers):
        raise PermissionDenied(
            "A sign-in on the pages is good for requests of these pages only; send an API key."
        )
    if scope["type"] == "http" and CSRF_HEADER not in headers:
        raise PermissionDenied(f"Requests of the pages have the header {CSRF_HEADER}.")


class Operations:
    """Finds operations by method and path."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.all = tuple(operations)
        self.fixed = {(one.method, one.path): one for one in self.all if "{" not in one.path}
        """Those without parameters in their path: one look finds them."""
        self._patterns = [(compile_path(one.path)[0], one) for one in self.all if "{" in one.path]

    def find(self, method: str, path: str) -> tuple[Operation | None, dict[str, str]]:
        """The operation, and the parameters in its path."""
        if (fixed := self.fixed.get((method, path))) is not None:
            return fixed, {}
        for pattern, operation in self._patterns:
            if operation.method == method and (match := pattern.match(path)) is not None:
                return operation, match.groupdict()
        return None, {}

    def at(self, path: str) -> list[Operation]:
        """All operations at a path, whatever their method."""
        fixed = [one for one in self.all if one.path == path]
        return fixed + [one for pattern, one in self._patterns if pattern.match(path)]


class Auth:
    """Sets the operation and the principal of a request, or raises ``ApiError``.

    It looks at ``scope["path"]`` only, never at a URL, which the client's Host header can change.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: SignIn,
        operations: Operations,
        starts: FairStarts,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._starts = starts
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            method = scope["method"] if scope["type"] == "http" else SOCKET
            found = self._operations.fixed.get((method, scope["path"]))
            if found is None:
                needed = self._search(scope, "GET" if method == "HEAD" else method)
            else:
                context.of(scope).found(found)
                needed = None if method == SOCKET else found.scope
            if needed is not None:
                await self._authorize(scope, needed)
        await self._app(scope, receive, send)

    def _search(self, scope: Scope, method: str) -> KeyScope | None:
        """Find an operation that is not at a fixed path. Returns the scope that a key needs; None
        if none is needed."""
        path: str = scope["path"]
        found, params = self._operations.find(method, path)
        scope["path_params"] = params
        if found is not None:
            context.of(scope).found(found)
            return None if method == SOCKET else found.scope
        # Nothing is here, or not for this method: those hear it who may use what is beside it.
        others = self._operations.at(path)
        if others and all(other.scope is None or other.method == SOCKET for other in others):
            return None
        if path.startswith("/admin/v1/"):
            return "usage"
        if path.startswith(("/v1/responses/", "/v1/conversations/")):
            return "responses"
        return "chat" if not others else others[0].scope

    async def _authorize(self, scope: Scope, needed: KeyScope) -> None:
        token = credential_in(scope, self._authenticator)
        if token is None:
            raise InvalidApiKey(
                "You didn't provide an API key. Send it in the Authorization header: "
                "Bearer YOUR_API_KEY."
            )
        principal = await self._authenticator.authenticate(token)
        require_scope(principal.key, needed)
        request = context.of(scope)
        request.principal = principal
        if request.trust is not None:
            request.trust()
        await self._starts.next(principal.tenant.id)
