"""What is at an engine's address speaks with its keys, and lies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest
import zmq
import zmq.asyncio

from engine.client.fleet import Fleet
from engine.messages import (
    Attach,
    GenerateRequest,
    Ping,
    Ready,
    RequestOutput,
    Stats,
    StepOutputs,
    decode_client_message,
    encode,
)
from engine.sockets import admit_only, listen
from tenants.shared import SharedState
from tests.engine.stand_in import expected_tokens
from tests.gateway.fleet.test_registry import (
    KEYS,
    following,
    hosted,
    names,
    quickly,
    read,
    request,
    until,
)
from tests.memory_store.store import MemoryStore

__all__ = ["quickly"]
pytestmark = pytest.mark.asyncio


class Liar:
    """Listens as an engine does, and answers what it was made to answer."""

    def __init__(self, socket: zmq.Socket[bytes], epoch: int, answer: bytes) -> None:
        self.num_asked = 0
        self._socket = socket
        self._ready = Ready(
            model="ok",
            max_model_len=1000,
            vocab_size=1 << 21,
            block_size=16,
            num_blocks=100,
            device="cpu",
            pid=1,
            epoch=epoch,
        )
        self._answer = answer

    async def run(self) -> None:
        while True:
            try:
                client, data = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                await asyncio.sleep(0.005)
                continue
            match decode_client_message(data):
                case Attach():
                    answer = encode(self._ready)
                case Ping():
                    answer = encode(Stats())
                case GenerateRequest(request_id=name):
                    self.num_asked += 1
                    answer = self._answer or encode(StepOutputs([RequestOutput(name, [666])]))
                case _:
                    continue
            with contextlib.suppress(zmq.ZMQError):  # It has left.
                self._socket.send_multipart((client, answer))


@contextlib.asynccontextmanager
async def liar(
    shared: SharedState, *, registered: int, real: int, answer: bytes = b""
) -> AsyncIterator[Liar]:
    """``registered``: the epoch in the registry; ``real``: the one that it names itself."""
    with zmq.Context() as context:
        authenticator = admit_only(context, KEYS.engine)
        socket = listen(context, "tcp://127.0.0.1:*", KEYS.engine)
        running = None
        try:
            address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
            async with hosted(shared) as model:
                (record,) = [one for one in await shared.list_engines() if one.id == model.id]
            record = msgspec.structs.replace(record, id="liar", address=address, epoch=registered)
            await shared.register_engine(record, timedelta(minutes=1))
            speaks = Liar(socket, real, answer)
            running = asyncio.create_task(speaks.run())
            yield speaks
        finally:
            if running is not None:
                running.cancel()
            socket.close(linger=0)
            authenticator.stop()


async def test_an_engine_of_an_old_epoch_is_not_heard_and_counted() -> None:
    shared = MemoryStore().shared
    epoch = time.time_ns()
    async with (
        liar(shared, registered=epoch, real=epoch - 1) as speaks,
        hosted(shared) as one,
        following(shared) as (fleet, follower),
    ):
        await until(lambda: names(fleet) == {one.id})
        await until(lambda: follower.num_refused["epoch"] > 0)
        for number in range(5):
            answer = await read(fleet.submit(request(str(number), 20)))
            assert answer == expected_tokens([7, 8, 9], 20)
        assert speaks.num_asked == 0


async def test_poison_of_an_engine_ends_its_connection_and_its_requests_go_on() -> None:
    shared = MemoryStore().shared
    epoch = time.time_ns()
    async with (
        following(shared) as (fleet, _),
        liar(shared, registered=epoch, real=epoch, answer=b"\xc1") as speaks,
    ):
        await until(lambda: names(fleet) == {"liar"})
        stream = fleet.submit(request("r", 20))
        await until(lambda: speaks.num_asked > 0 and len(fleet.moves) == 1)
        async with hosted(shared) as one:
            await shared.forget_engine("liar", epoch)
            await until(lambda: names(fleet) == {one.id})
            assert await read(stream) == expected_tokens([7, 8, 9], 20)
    assert idle(fleet)


def idle(fleet: Fleet) -> bool:
    return fleet.num_streams == 0 and not len(fleet.moves)
