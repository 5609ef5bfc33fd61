from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Scope

from gateway import context
from gateway.answers.chat import ChatEncoder
from gateway.answers.chunks import Head
from gateway.routes import answers
from gateway.transport import extensions
from gateway.transport.extensions import Disconnect
from tests.gateway.engine_double import Play
from tests.gateway.generating import bench

pytestmark = pytest.mark.asyncio


async def _never(message: Message) -> None:
    pytest.fail(f"sent {message}")


async def test_a_client_that_has_left_before_its_answer_is_collected_is_settled(
    model_dir: Path,
) -> None:
    """As when it leaves in the turn of the event loop that admits its request."""
    disconnect = Disconnect()
    scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    extensions.offer(scope, lambda data: False, disconnect)
    context.attach(scope, _never)
    async with bench(model_dir) as here:
        here.double.script = lambda prompt: Play(text="x", queued_s=60)
        generation = here.begin()
        completion = ChatEncoder(Head("chatcmpl-1", 1, "tiny"))
        disconnect.leave()
        with pytest.raises(ClientDisconnect):
            await answers.collect(Request(scope), generation, completion)
        assert (await here.event()).status == "disconnected"
        assert not here.generations.live()
