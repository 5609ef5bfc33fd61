"""Refuses a request before its body is read, if it is known already that it cannot be admitted."""

from __future__ import annotations

from collections.abc import Callable, Set

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import context
from gateway.errors import ApiError
from gateway.middleware import idempotency
from tenants.errors import QuotaExceeded
from tenants.shared import SharedState
from tenants.types import Principal


class RateLimit:
    """Raises what ``check`` raises for the principal of a request to ``paths``.

    Admission would refuse it, too, but only after it was read, checked and routed: twice the work,
    for what clients may send as often as they can. A request whose idempotency key is known passes,
    because its answer may be there. Looking for the key takes one read of the store, together with
    those of all requests that come at the same time; it is claimed only if the request passes.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        check: Callable[[Principal], None],
        shared: SharedState,
        paths: Set[str],
    ) -> None:
        self._app = app
        self._check = check
        self._shared = shared
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths:
            known = context.of(scope)
            known.route = scope["path"]  # None of ``paths`` has a parameter.
            principal = context.principal_of(scope)
            try:
                self._check(principal)
            except (ApiError, QuotaExceeded):
                if not await self._may_have_answer(scope, principal):
                    raise
        await self._app(scope, receive, send)

    async def _may_have_answer(self, scope: Scope, principal: Principal) -> bool:
        key = Headers(scope=scope).get(idempotency.HEADER)
        if key is None:
            return False
        key_hash = idempotency.hash_key(key)
        return await self._shared.find_claim(principal.tenant.id, key_hash) is not None
