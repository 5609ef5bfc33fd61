from __future__ import annotations

from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.errors import RateLimited
from gateway.sockets.open_sockets import of_strangers
from tests.gateway.serving import served_double, until
from tests.gateway.ws_client import connected, ready


def test_an_address_may_have_so_many_strangers() -> None:
    strangers = of_strangers(2)
    first, _ = strangers.enter("a"), strangers.enter("a")
    with pytest.raises(RateLimited, match="have not authenticated"):
        strangers.enter("a")
    strangers.enter("b")
    first()
    first()
    strangers.enter("a")
    with pytest.raises(RateLimited):
        strangers.enter("a")


@pytest.mark.asyncio
async def test_a_tenant_has_half_of_all_connections(model_dir: Path) -> None:
    async with served_double(model_dir, max_connections=4) as (gateway, _):
        async with ready(gateway), ready(gateway):
            bearer = {"authorization": f"Bearer {gateway.api_key}"}
            with pytest.raises(InvalidStatus) as refused:
                async with connected(gateway, additional_headers=bearer):
                    pass
            assert refused.value.response.status_code == 429
            async with connected(gateway) as client:
                await client.send(type="auth", api_key=gateway.api_key)
                assert "half of this server" in (await client.receive())["error"]["message"]
                with pytest.raises(ConnectionClosed):
                    await client.receive()
        services = gateway.app.state.services
        await until(lambda: not services.members._open and not services.strangers._open)
        async with ready(gateway):
            pass
