"""Refuses a request before its body is read, if it is known already that it cannot be admitted."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context
from gateway.errors import ApiError, foreseen
from gateway.middleware import idempotency
from tenants.attempts import Attempt, Attempts
from tenants.errors import QuotaExceeded
from tenants.shared import SharedState
from tenants.types import Principal

_API = "/v1/"
"""Where refused requests count. An operator whose own limits are reached may still change them."""
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class RateLimit:
    """Raises what ``check`` raises for the principal of a request that reserves tokens, and for any
    request of the API with a body ``QuotaExceeded`` if too many before it were refused.

    Admission would refuse it, too, but only after it was read, checked and routed: twice the work,
    for what clients may send as often as they can. A request whose idempotency key is known passes,
    because its answer may be there. Looking for the key takes one read of the store, together with
    those of all requests that come at the same time; it is claimed only if the request passes.

    A request that passes is an attempt (``tenants.attempts``) from here on, until it is admitted or
    succeeds otherwise. It remains one if it is refused or its client leaves; not if the server
    failed, nor if the rate of requests itself refused it, which has said when to come again.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        check: Callable[[Principal], None],
        attempts: Attempts,
        shared: SharedState,
    ) -> None:
        self._app = app
        self._check = check
        self._attempts = attempts
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = _who_sends_a_body(scope)
        if principal is None:
            await self._app(scope, receive, send)
            return
        known = context.of(scope)
        try:
            if known.operation is not None and known.operation.reserves:
                self._check(principal)
            known.attempt = self._attempts.begin(principal)
        except (ApiError, QuotaExceeded):
            if not await self._may_have_answer(scope, principal):
                raise
        if known.attempt is None:
            await self._app(scope, receive, send)
        else:
            await self._run(known.attempt, scope, receive, send)

    async def _run(self, attempt: Attempt, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start" and not 400 <= message["status"] < 500:
                attempt.end()
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        except Exception as exc:
            attempt.failed(exc, is_ours=_is_ours(exc))
            if isinstance(exc, QuotaExceeded) and exc.answer.wait_us is not None:
                # Another attempt may have to wait for longer than what refused this one.
                wait_us = max(exc.answer.wait_us, attempt.wait_us)
                raise QuotaExceeded(replace(exc.answer, wait_us=wait_us)) from None
            raise

    async def _may_have_answer(self, scope: Scope, principal: Principal) -> bool:
        key = idempotency.key_of(scope)
        if key is None:
            return False
        key_hash = idempotency.hash_key(key)
        return await self._shared.find_claim(principal.tenant.id, key_hash) is not None


def _who_sends_a_body(scope: Scope) -> Principal | None:
    """The principal of a request whose refusal counts; None for all others."""
    if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
        return None
    return context.of(scope).principal if scope["path"].startswith(_API) else None


def _is_ours(exc: Exception) -> bool:
    # In a frame of its own: an error that its traceback's frames refer to is a cycle.
    error = foreseen(exc)
    return error is None or error.status >= 500
