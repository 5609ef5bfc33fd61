"""``POST /v1/ws-tickets``: a ticket for one WebSocket, bound to the key that asks."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.middleware.auth import bearer_token
from gateway.schemas.tickets import WsTicket
from gateway.sockets.tickets import Tickets


def tickets_route(tickets: Tickets) -> Route:
    async def create(request: Request) -> Response:
        api_key = bearer_token(request.headers)
        assert api_key is not None, "the route must not be public"
        answer = WsTicket(
            ticket=tickets.issue(api_key), expires_at=int(time.time() + tickets.lifetime_s)
        )
        return Response(
            msgspec.json.encode(answer),
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )

    return Route("/v1/ws-tickets", create, methods=["POST"])
