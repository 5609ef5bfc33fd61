"""``POST /v1/ws-tickets``: a ticket for one WebSocket, bound to the key that asks."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from gateway.middleware.auth import credential_in
from gateway.routes.http import secret_answer
from gateway.schemas.tickets import WsTicket
from gateway.services import Services


async def create(services: Services, request: Request) -> Response:
    api_key = credential_in(request.scope, services.authenticator)
    assert api_key is not None, "the route must not be public"
    tickets = services.tickets
    expires_at = int(time.time() + tickets.lifetime_s)
    return secret_answer(WsTicket(ticket=tickets.issue(api_key), expires_at=expires_at))
