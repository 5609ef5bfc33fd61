"""Refuses a request whose rate is used up before its body is read, if that is known already."""

from __future__ import annotations

from collections.abc import Set

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import context
from gateway.middleware.idempotency import HEADER
from tenants.quota import Quota


class RateLimit:
    """Raises ``QuotaExceeded`` for a request to ``paths`` that would be refused whatever it says.

    Admission would refuse it, too, but only after it was read, checked and routed: twice the work,
    for what clients may send as often as they can. A request with an idempotency key passes, since
    its answer may be there.
    """

    def __init__(self, app: ASGIApp, *, quota: Quota, paths: Set[str]) -> None:
        self._app = app
        self._quota = quota
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_new(scope):
            known = context.of(scope)
            known.route = scope["path"]  # None of ``paths`` has a parameter.
            self._quota.check(context.principal_of(scope))
        await self._app(scope, receive, send)

    def _is_new(self, scope: Scope) -> bool:
        """Whether the request can only be answered by a new generation."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            return False
        return HEADER not in Headers(scope=scope)
