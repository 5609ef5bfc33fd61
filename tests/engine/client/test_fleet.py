"""Several engine processes as one: streams outlive the engines that they began with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from engine.client import client
from engine.client.attached import AttachedEngine
from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.stream import RequestStream
from engine.client.transport import private_socket_path
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineDead, QueueFull
from engine.messages import GenerateRequest, RequestOutput
from engine.sampling_params import SamplingParams
from tests.engine.stand_in import StandInProcess, Trap, expected_tokens

CONFIG = EngineConfig(model="ok", max_num_seqs=64)

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def fleet_of(
    num_engines: int,
    *,
    config: EngineConfig = CONFIG,
    failover_wait_s: float = 30.0,
    **options: Any,
) -> AsyncIterator[Fleet]:
    fleet = Fleet(
        [
            EngineClient(config, transport=StandInProcess, name=str(number), **options)
            for number in range(num_engines)
        ],
        failover_wait_s=failover_wait_s,
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


@contextlib.asynccontextmanager
async def attached_fleet_of(num_engines: int) -> AsyncIterator[tuple[Fleet, list[EngineClient]]]:
    """A fleet as gateway workers have it, and the owners of its engines."""
    folder, path = private_socket_path("engine")
    addresses = [f"ipc://{path}{number}" for number in range(num_engines)]
    owners = [
        EngineClient(CONFIG, transport=partial(StandInProcess, shared_address=address))
        for address in addresses
    ]
    fleet = Fleet(
        [
            EngineClient(CONFIG, transport=partial(AttachedEngine, address=address), name=str(i))
            for i, address in enumerate(addresses)
        ],
        spawns=False,
    )
    try:
        await asyncio.gather(*(owner.start() for owner in owners))
        await fleet.start()
        await until_ready(fleet)
        yield fleet, owners
    finally:
        await fleet.close()
        await asyncio.gather(*(owner.close() for owner in owners))
        shutil.rmtree(folder)


def request(name: str, first: int, num_tokens: int, **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=[first, first + 1, first + 2],
        params=SamplingParams(max_tokens=num_tokens),
        **fields,
    )


def expected(first: int, num_tokens: int) -> list[int]:
    return expected_tokens([first, first + 1, first + 2], num_tokens)


async def read(stream: RequestStream) -> list[int]:
    return [token async for output in stream for token in output.new_token_ids]


async def begun(*streams: RequestStream) -> list[RequestOutput]:
    """The first output of each."""
    return [await anext(stream) for stream in streams]


def kill(engine: EngineClient) -> None:
    os.kill(engine.info.pid, signal.SIGKILL)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (processes send no events)
            await asyncio.sleep(0.001)


async def until_ready(fleet: Fleet) -> None:
    await until(lambda: all(engine.ready for engine in fleet.engines))


async def home_of(fleet: Fleet, *, but: EngineClient | None = None) -> EngineClient:
    """The engine that has requests, once one has."""
    homes: list[EngineClient] = []

    def found() -> bool:
        homes[:] = [one for one in fleet.engines if one.num_streams and one is not but]
        return bool(homes)

    await until(found)
    return homes[0]


async def test_engines_share_the_work() -> None:
    async with fleet_of(3) as fleet:
        streams = [fleet.submit(request(str(i), 10 * i, 200)) for i in range(30)]
        assert [engine.num_streams for engine in fleet.engines] == [10, 10, 10]
        answers = await asyncio.gather(*map(read, streams))
        assert answers == [expected(10 * i, 200) for i in range(30)]
        assert (await fleet.fetch_stats()).generation_tokens == 30 * 200
        assert fleet.num_streams == 0


async def test_the_choices_of_a_prompt_stay_together() -> None:
    async with fleet_of(3) as fleet:
        for group in ("a", "b", "c"):
            for i in range(4):
                fleet.submit(request(f"{group}{i}", 1, 1000, group=group))
        assert [engine.num_streams for engine in fleet.engines] == [4, 4, 4]


@pytest.mark.parametrize("num_engines", [1, 2])
async def test_a_dead_engine_is_a_pause(num_engines: int) -> None:
    async with fleet_of(num_engines) as fleet:
        streams = [fleet.submit(request(str(i), 10 * i, 2000)) for i in range(12)]
        first = await begun(*streams)
        kill(fleet.engines[0])
        rest = await asyncio.gather(*map(read, streams))
        for i, (output, more) in enumerate(zip(first, rest, strict=True)):
            assert output.new_token_ids + more == expected(10 * i, 2000)
            assert streams[i].num_generated_tokens == 2000
            assert streams[i].finish_reason == "length"
        assert fleet.moves.num_moved == 12 // num_engines
        assert fleet.moves.num_failed == fleet.num_streams == 0


async def test_a_hanging_engine_is_a_pause() -> None:
    async with fleet_of(2, hang_timeout_s=0.8) as fleet:
        streams = [fleet.submit(request(str(i), 10 * i, 2500)) for i in range(4)]
        first = await begun(*streams)
        pid = fleet.engines[1].info.pid
        os.kill(pid, signal.SIGSTOP)
        rest = await asyncio.gather(*map(read, streams))
        for i, (output, more) in enumerate(zip(first, rest, strict=True)):
            assert output.new_token_ids + more == expected(10 * i, 2500)
        await until_ready(fleet)
        assert fleet.engines[1].info.pid != pid


async def test_grants_hold_wherever_the_request_goes() -> None:
    async with fleet_of(2) as fleet:
        stream = fleet.submit(request("r", 1, 1000, num_granted_tokens=5))
        got: list[int] = []
        while len(got) < 5:
            got += (await anext(stream)).new_token_ids
        stream.grant(9)
        while len(got) < 9:
            got += (await anext(stream)).new_token_ids
        for num_tokens in (12, 15):
            (home,) = [engine for engine in fleet.engines if engine.num_streams]
            kill(home)
            async with asyncio.timeout(20):
                while home.ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            stream.grant(num_tokens, is_last=num_tokens == 15)
            while len(got) < num_tokens:
                got += (await anext(stream)).new_token_ids
            await until_ready(fleet)
        assert got + await read(stream) == expected(1, 15)
        assert stream.finish_reason == "length"


async def test_nobody_waits_for_ever() -> None:
    async with fleet_of(1, failover_wait_s=0.01) as fleet:
        stream = fleet.submit(request("r", 1, 10_000))
        await anext(stream)
        os.kill(fleet.engines[0].info.pid, signal.SIGKILL)
        # The restart takes longer.
        with pytest.raises(EngineDead, match=r"killed by SIGKILL; no other one came in 0.01 s"):
            await read(stream)
        assert fleet.moves.num_failed == 1
        assert fleet.num_streams == 0


async def test_a_reader_may_leave_while_its_request_has_no_engine() -> None:
    async with fleet_of(1) as fleet:
        stays, leaves = (fleet.submit(request(str(i), 1, 3000)) for i in range(2))
        first = (await begun(stays, leaves))[0]
        kill(fleet.engines[0])
        async with asyncio.timeout(20):
            while not len(fleet.moves):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await leaves.aclose()
        assert leaves.finish_reason == "abort"
        assert first.new_token_ids + await read(stays) == expected(1, 3000)


async def test_what_kills_engines_fails_alone() -> None:
    """It takes two engines with it, and no request but itself."""
    async with fleet_of(2) as fleet:
        others = [fleet.submit(request(str(i), 10 * i, 1200)) for i in range(6)]
        first = await begun(*others)
        killer = fleet.submit(request("killer", Trap.EXIT, 10))
        late = [fleet.submit(request(f"late {i}", 10 * i, 1200)) for i in range(3)]
        with pytest.raises(EngineDead, match="like the one before it, over this request"):
            await read(killer)
        rest = await asyncio.gather(*map(read, others))
        for i, (output, more) in enumerate(zip(first, rest, strict=True)):
            assert output.new_token_ids + more == expected(10 * i, 1200)
        for i, tokens in enumerate(await asyncio.gather(*map(read, late))):
            assert tokens == expected(10 * i, 1200)
        assert fleet.moves.num_failed == 1


async def test_nobody_is_to_blame_for_engines_that_are_killed() -> None:
    """Though the request had no token of any of them."""
    async with fleet_of(2) as fleet:
        stream = fleet.submit(request("r", 1, 10, num_granted_tokens=0))
        kill(first := await home_of(fleet))
        kill(await home_of(fleet, but=first))
        await until(lambda: len(fleet.moves) > 0 or fleet.moves.num_moved > 1)
        stream.grant(10, is_last=True)
        assert await read(stream) == expected(1, 10)
        assert fleet.moves.num_failed == 0


async def test_a_worker_waits_for_the_word_of_whoever_saw_how_two_engines_ended() -> None:
    async with attached_fleet_of(2) as (fleet, _):
        stream = fleet.submit(request("r", 1, 10, num_granted_tokens=0))
        kill(first := await home_of(fleet))
        kill(await home_of(fleet, but=first))
        await until(lambda: stream.num_strikes == 2)
        await until(lambda: stream.num_strikes == 0)
        stream.grant(10, is_last=True)
        assert await read(stream) == expected(1, 10)


async def test_a_worker_need_not_wait_where_the_owner_tells_it() -> None:
    async with attached_fleet_of(2) as (fleet, owners):
        for owner, engine in zip(owners, fleet.engines, strict=True):
            owner.on_ended = partial(tell_of, owner, fleet, engine)
        stream = fleet.submit(request("r", 1, 10, num_granted_tokens=0))
        kill(home := await home_of(fleet))
        await home_of(fleet, but=home)
        # The next engine of that name would tell it too, but comes later.
        await until(lambda: home.ready or stream.num_strikes == 0)
        assert stream.num_strikes == len(fleet.moves._doubtful) == 0
        assert not home.ready
        stream.grant(10, is_last=True)
        assert await read(stream) == expected(1, 10)


def tell_of(owner: EngineClient, fleet: Fleet, engine: EngineClient) -> None:
    fleet.moves.learn(engine, owner.epoch, was_killed=bool(owner.was_killed))


async def test_what_kills_the_engines_of_a_worker_fails_alone() -> None:
    async with attached_fleet_of(2) as (fleet, owners):
        deaths: list[EngineClient] = []
        for owner in owners:
            owner.on_change = lambda one=owner: None if one.ready else deaths.append(one)
        killer = fleet.submit(request("killer", Trap.EXIT, 10))
        others = [fleet.submit(request(str(i), 10 * i, 100)) for i in range(6)]
        with pytest.raises(EngineDead, match="like the one before it, over this request"):
            await read(killer)
        answers = await asyncio.gather(*map(read, others))
        assert answers == [expected(10 * i, 100) for i in range(6)]
        assert fleet.moves.num_failed == 1
        assert len(deaths) == 2


async def test_nobody_is_to_blame_for_connections_that_break() -> None:
    async with attached_fleet_of(1) as (fleet, _):
        stream = fleet.submit(request("r", 1, 10, num_granted_tokens=0))
        for _ in range(2):
            fleet.engines[0].lose("the connection broke")
            assert stream.num_strikes == 1
            await until_ready(fleet)
            assert stream.num_strikes == 0
        stream.grant(10, is_last=True)
        assert await read(stream) == expected(1, 10)


async def test_a_drained_engine_hands_its_requests_over() -> None:
    async with fleet_of(2) as fleet:
        one, two = fleet.engines
        streams = [fleet.submit(request(str(i), 10 * i, 1500)) for i in range(8)]
        first = await begun(*streams)
        fleet.drain(one)
        assert fleet.state_of(one) == "drained"
        late = fleet.submit(request("late", 5, 1500))
        async with asyncio.timeout(20):
            while one.num_streams:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert fleet.moves.num_moved == 4
        fleet.undrain(one)
        fleet.drain(two)
        async with asyncio.timeout(20):
            while two.num_streams:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        fleet.drain(one)  # The last one: what runs ends there, and nothing new is taken.
        with pytest.raises(EngineDead, match="all engines are drained"):
            fleet.submit(request("refused", 1, 1))
        rest = await asyncio.gather(*map(read, streams))
        for i, (output, more) in enumerate(zip(first, rest, strict=True)):
            assert output.new_token_ids + more == expected(10 * i, 1500)
        assert await read(late) == expected(5, 1500)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PING_INTERVAL_S", 0.02)
    monkeypatch.setattr(client, "MIN_WAIT_S", 0.05)


@pytest.mark.usefixtures("quickly")
async def test_what_waits_goes_to_an_engine_that_comes_back() -> None:
    """Though nothing ends at the engine where it waited. Choices stay together, and what runs stays
    where it is."""
    async with fleet_of(2, config=replace(CONFIG, max_num_seqs=2)) as fleet:
        here, back = fleet.engines
        fleet.drain(back)
        holds = [fleet.submit(request(str(i), 10 * i, 20, num_granted_tokens=5)) for i in range(2)]
        first = await begun(*holds)
        choices = [fleet.submit(request(f"c{i}", i, 20, group="c")) for i in range(2)]
        waiting = [fleet.submit(request(f"w{i}", 10 * i, 50)) for i in range(6)]
        fleet.undrain(back)
        answers = await asyncio.gather(*map(read, waiting))
        assert answers == [expected(10 * i, 50) for i in range(6)]
        assert fleet.moves.num_moved == 6
        assert here.num_streams == 4
        assert [stream.request_id for stream in holds + choices] == ["0", "1", "c0", "c1"]
        for stream in holds:
            stream.grant(20, is_last=True)
        rest = await asyncio.gather(*map(read, holds + choices))
        assert [a.new_token_ids + b for a, b in zip(first, rest, strict=False)] == [
            expected(10 * i, 20) for i in range(2)
        ]
        assert rest[2:] == [expected(i, 20) for i in range(2)]


async def test_nobody_is_suspected_of_engines_that_leave() -> None:
    """Though they had no token of any of them."""
    async with fleet_of(3, shutdown_timeout_s=0.1) as fleet:
        for engine in fleet.engines[:2]:
            os.kill(engine.info.pid, signal.SIGSTOP)
        fleet.drain(last := fleet.engines[2])
        streams = [fleet.submit(request(str(i), 10 * i, 50)) for i in range(4)]
        await fleet.remove(fleet.engines[0], "it has left", has_left=True)
        assert fleet.engines[0].num_streams == 4
        fleet.undrain(last)
        await fleet.remove(fleet.engines[0], "it has left", has_left=True)
        assert [stream.num_strikes for stream in streams] == [0] * 4
        answers = await asyncio.gather(*map(read, streams))
        assert answers == [expected(10 * i, 50) for i in range(4)]


async def test_kills_at_random_under_many_streams() -> None:
    rng = random.Random(7)
    async with fleet_of(3) as fleet:

        async def client(number: int) -> None:
            for turn in range(4):
                num_tokens = rng.choice([1, 50, 400, 900])
                stream = fleet.submit(request(f"{number}/{turn}", 10 * number, num_tokens))
                assert await read(stream) == expected(10 * number, num_tokens)
                assert stream.num_generated_tokens == num_tokens

        async def killer() -> None:
            while True:
                await asyncio.sleep(rng.uniform(0.1, 0.4))
                engine = rng.choice(fleet.engines)
                if engine.ready and sum(one.ready for one in fleet.engines) > 1:
                    kill(engine)

        killing = asyncio.create_task(killer())
        await asyncio.gather(*(client(number) for number in range(40)))
        killing.cancel()
        assert fleet.moves.num_moved > 0
        assert fleet.moves.num_failed == 0


async def test_a_full_engine_leaves_a_request_to_the_next() -> None:
    async with fleet_of(2, max_num_queued_reqs=2, shutdown_timeout_s=0.1) as fleet:
        for engine in fleet.engines:
            engine._transport.send = lambda message: None  # type: ignore[union-attr, method-assign]
        for i in range(4):
            fleet.submit(request(str(i), 1, 1))
        with pytest.raises(QueueFull):
            fleet.submit(request("too many", 1, 1))


async def test_a_bad_setting_fails_at_the_start() -> None:
    with pytest.raises(ConfigError, match="block_size must be less"):
        async with fleet_of(2, config=EngineConfig(model="wrong")):
            pass
