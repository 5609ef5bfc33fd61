"""Engines that other processes run, found in the registry and reached over TCP with keys."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import zmq

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from engine.client.stream import RequestStream
from engine.errors import EngineDead
from engine.messages import PROTOCOL, GenerateRequest
from engine.sampling_params import SamplingParams
from gateway.config import Config, parse
from gateway.errors import ConfigError
from gateway.fleet import registry
from gateway.fleet.identity import FleetKeys, Identity, derive_keys
from gateway.fleet.registry import Registry
from gateway.processes import engine_host
from gateway.processes.engine_host import EngineHost
from gateway.processes.fleet import attached_fleets
from tenants.changes import Change
from tenants.errors import StoreUnavailable
from tenants.shared import EngineRecord, SharedState
from tests.engine.stand_in import StandInProcess, expected_tokens
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio

KEYS = derive_keys(b"k" * 32)
IDENTITY = Identity("weights", "tokenizer")
CONFIG = parse({"engine": {"model": "ok", "max_num_seqs": 64}, "fleet": {"replicas": 0}})


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (registry, engine_host):
        monkeypatch.setattr(module, "RENEW_S", 0.1)
        monkeypatch.setattr(module, "LEASE", timedelta(seconds=0.5))
    monkeypatch.setattr(registry, "PATIENCE_S", 0.2)


@contextlib.asynccontextmanager
async def hosted(
    shared: SharedState,
    *,
    keys: FleetKeys = KEYS,
    identity: Identity = IDENTITY,
    config: Config = CONFIG,
) -> AsyncIterator[EngineHost]:
    host = EngineHost(config, shared, keys, identity, process=StandInProcess)
    ready = asyncio.Event()
    running = asyncio.create_task(host.run(lambda _: ready.set()))
    try:
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED, timeout=30)
        waiting.cancel()
        if running.done():
            running.result()
        yield host
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def following(
    shared: SharedState, *, config: Config = CONFIG, identity: Identity = IDENTITY
) -> AsyncIterator[tuple[Fleet, Registry]]:
    fleets = attached_fleets(config, ())
    fleet = fleets[config.model_name]
    follower = Registry(shared, fleets, config, KEYS)
    follower._identities[config.model_name] = identity
    running = asyncio.create_task(follower.run())
    starting = asyncio.create_task(fleet.start())
    try:
        yield fleet, follower
    finally:
        for task in (running, starting):
            task.cancel()
        await asyncio.gather(running, starting, return_exceptions=True)
        await fleet.close()


async def until(done: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not done():  # noqa: ASYNC110 - what other processes do sets no event here
            await asyncio.sleep(0.01)


def request(name: str, num_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=[7, 8, 9],
        params=SamplingParams(max_tokens=num_tokens),
    )


async def read(stream: RequestStream) -> list[int]:
    return [token async for output in stream for token in output.new_token_ids]


def names(fleet: Fleet) -> set[str]:
    return {engine.name for engine in fleet.engines if engine.ready}


async def test_engines_join_and_leave_while_requests_run() -> None:
    shared = MemoryStore().shared
    async with following(shared) as (fleet, _):
        with pytest.raises(EngineDead, match="no engine has joined yet"):
            fleet.submit(request("too early", 1))
        async with hosted(shared) as one:
            await until(lambda: names(fleet) == {one.id})
            stream = fleet.submit(request("r", 3000))
            first = await anext(stream)
            async with hosted(shared) as two:
                await until(lambda: names(fleet) == {one.id, two.id})
                os.kill(one.engine.info.pid, signal.SIGKILL)
                rest = await read(stream)
                assert first.new_token_ids + rest == expected_tokens([7, 8, 9], 3000)
                await until(lambda: names(fleet) == {one.id, two.id})  # with a new epoch
            await until(lambda: names(fleet) == {one.id})
        await until(lambda: not names(fleet))
    assert not await shared.list_engines()


async def test_draining_reaches_all_gateways() -> None:
    shared = MemoryStore().shared
    async with (
        hosted(shared) as one,
        hosted(shared) as two,
        following(shared) as (fleet, follower),
        following(shared) as (other, _),
    ):
        await until(lambda: names(fleet) == names(other) == {one.id, two.id})
        streams = [fleet.submit(request(str(i), 2500)) for i in range(4)]
        assert await shared.drain_engine(one.id, is_drained=True)
        follower.on_change(Change(engine_id=one.id))
        answers = await asyncio.gather(*map(read, streams))
        assert answers == [expected_tokens([7, 8, 9], 2500)] * 4
        await until(lambda: all(engine.name != one.id for engine in other._serving))
        assert fleet.moves.num_moved == 2
        await shared.drain_engine(one.id, is_drained=False)
        await until(lambda: len(fleet._serving) == len(other._serving) == 2)
        assert not await shared.drain_engine("nobody", is_drained=True)


async def test_an_engine_whose_lease_is_over_is_given_up_and_comes_back() -> None:
    """As one that neither PostgreSQL nor its supervisor reaches, though it goes on talking."""
    shared = MemoryStore().shared
    async with following(shared) as (fleet, _), hosted(shared) as one, hosted(shared) as two:
        await until(lambda: names(fleet) == {one.id, two.id})
        streams = [fleet.submit(request(str(i), 4000)) for i in range(4)]
        register, away = shared.register_engine, True

        async def refused(engine: EngineRecord, lease: timedelta) -> Any:
            if away and engine.id == one.id:
                raise StoreUnavailable("the cable is out")
            return await register(engine, lease)

        shared.register_engine = refused  # type: ignore[method-assign]
        epoch, pid = one._epoch, one.engine.info.pid
        await until(lambda: names(fleet) == {two.id})
        away = False
        await until(lambda: names(fleet) == {one.id, two.id})
        assert one._epoch > epoch
        assert one.engine.info.pid == pid
        assert await asyncio.gather(*map(read, streams)) == [expected_tokens([7, 8, 9], 4000)] * 4
        assert fleet.moves.num_failed == 0


async def test_an_own_engine_that_dies_is_registered_as_away_until_it_is_back() -> None:
    """That is what the events ``engine.down`` and ``engine.up`` follow."""
    shared = MemoryStore().shared
    engine = EngineClient(CONFIG.engine, transport=StandInProcess)
    fleet = Fleet([engine])
    follower = Registry(shared, Fleets({"ok": fleet}), CONFIG, KEYS)
    follower._identities["ok"] = IDENTITY
    states: list[str] = []

    async def watch() -> None:
        while True:
            states.extend(one.state for one in await shared.list_engines())
            await asyncio.sleep(0.01)

    await fleet.start()
    running = [asyncio.create_task(work) for work in (follower.run(), watch())]
    try:
        await until(lambda: states[-1:] == ["ready"])
        os.kill(engine.info.pid, signal.SIGKILL)
        await until(lambda: states[-1:] == ["loading"])
        await until(lambda: states[-1:] == ["ready"])
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await fleet.close()


async def test_the_last_known_fleet_serves_while_the_store_is_away() -> None:
    shared = MemoryStore().shared
    async with following(shared) as (fleet, _), hosted(shared) as one:
        await until(lambda: names(fleet) == {one.id})

        async def away(*_: object, **__: object) -> Any:
            raise StoreUnavailable("away")

        there = shared.list_engines, shared.register_engine
        shared.list_engines = shared.register_engine = away  # type: ignore[method-assign]
        await asyncio.sleep(1.5)  # three leases
        assert names(fleet) == {one.id}
        assert await read(fleet.submit(request("r", 50))) == expected_tokens([7, 8, 9], 50)
        shared.list_engines, shared.register_engine = there  # type: ignore[method-assign]
        await asyncio.sleep(0.5)
        assert names(fleet) == {one.id}
        assert await read(fleet.submit(request("s", 50))) == expected_tokens([7, 8, 9], 50)
        assert fleet.moves.num_moved == 0


async def test_other_weights_under_the_same_name_are_refused() -> None:
    shared = MemoryStore().shared
    async with hosted(shared) as one:
        with pytest.raises(ConfigError, match="engines of 'ok' are registered that have other"):
            async with hosted(shared, identity=Identity("others", "tokenizer")):
                pass
        assert [engine.id for engine in await shared.list_engines()] == [one.id]


async def test_a_name_of_an_engine_whose_clock_was_ahead_is_taken_over() -> None:
    """As of a lost host, whose engine another one starts again under the same name."""
    shared = MemoryStore().shared
    named = msgspec.structs.replace(
        CONFIG, fleet=msgspec.structs.replace(CONFIG.fleet, engine_id="m-1", engine_node="there")
    )
    async with hosted(shared, config=named) as one:
        (record,) = await shared.list_engines()
        assert (record.id, record.node) == ("m-1", "there")
        lost = msgspec.structs.replace(record, address="tcp://lost:1", epoch=record.epoch + 10**15)
        await shared.register_engine(lost, timedelta(0))
        async with following(shared) as (fleet, _):
            await until(lambda: names(fleet) == {"m-1"})
            assert await read(fleet.submit(request("r", 50))) == expected_tokens([7, 8, 9], 50)
        assert one._epoch > lost.epoch


async def test_of_two_engines_with_one_name_the_first_ends() -> None:
    shared = MemoryStore().shared
    named = msgspec.structs.replace(
        CONFIG, fleet=msgspec.structs.replace(CONFIG.fleet, engine_id="m-1")
    )
    first = EngineHost(named, shared, KEYS, IDENTITY, process=StandInProcess)
    running = asyncio.create_task(first.run())
    await until(lambda: first.engine.ready)
    async with hosted(shared, config=named) as second:
        with pytest.raises(
            ConfigError, match=r"another engine is called 'm-1', at tcp://.*engine_id"
        ):
            await asyncio.wait_for(running, 30)
        (record,) = await shared.list_engines()
        assert record.address == second.address


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"public_key": KEYS.gateway.public}, "key"),
        ({"protocol": PROTOCOL + 2}, "protocol"),
        ({"text_hash": "another"}, "tokenizer"),
    ],
)
async def test_what_does_not_fit_is_refused_and_counted(
    changes: dict[str, Any], cause: str
) -> None:
    shared = MemoryStore().shared
    async with hosted(shared) as one:
        (record,) = await shared.list_engines()
        bad = msgspec.structs.replace(record, id="bad", **changes)
        await shared.register_engine(bad, timedelta(minutes=1))
        async with following(shared) as (fleet, follower):
            await until(lambda: names(fleet) == {one.id})
            await until(lambda: follower.num_refused[cause] == 1)
            await asyncio.sleep(0.3)
            assert follower.num_refused == {cause: 1}  # counted once
            assert names(fleet) == {one.id}


async def test_the_next_and_the_last_protocol_are_spoken() -> None:
    shared = MemoryStore().shared
    async with hosted(shared) as one:
        (record,) = await shared.list_engines()
        await shared.forget_engine(record.id, record.epoch)
        for number, protocol in enumerate((PROTOCOL - 1, PROTOCOL + 1)):
            other = msgspec.structs.replace(record, id=f"other {number}", protocol=protocol)
            await shared.register_engine(other, timedelta(minutes=1))
        async with following(shared) as (fleet, _):
            await until(lambda: len(names(fleet) - {one.id}) == 2)


async def test_a_stranger_gets_no_word() -> None:
    shared = MemoryStore().shared
    async with hosted(shared) as one:
        strangers = derive_keys(b"s" * 32)
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.curve_serverkey = KEYS.engine.public.encode()
            socket.curve_publickey = strangers.gateway.public.encode()
            socket.curve_secretkey = strangers.gateway.secret.encode()
            socket.connect(one.address)
            socket.send(b"\x81\xa4type\xa6attach")
            assert not await asyncio.to_thread(socket.poll, 500)


async def test_poison_ends_that_connection_only() -> None:
    shared = MemoryStore().shared
    async with hosted(shared) as one, following(shared) as (fleet, _):
        await until(lambda: names(fleet) == {one.id})
        stream = fleet.submit(request("r", 1500))
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.curve_serverkey = KEYS.engine.public.encode()
            socket.curve_publickey = KEYS.gateway.public.encode()
            socket.curve_secretkey = KEYS.gateway.secret.encode()
            socket.connect(one.address)
            for poison in (b"", b"\xc1", b"\x91" * 100_000, b"\x81\xa4type\xa8shutdown"):
                await asyncio.to_thread(socket.send, poison)
            assert await asyncio.to_thread(socket.poll, 5000)  # that it was given up
        assert await read(stream) == expected_tokens([7, 8, 9], 1500)
