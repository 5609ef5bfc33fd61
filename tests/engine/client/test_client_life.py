"""How an engine starts, dies, comes back and ends, as its client sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from engine.client.client import EngineClient
from engine.client.stream import RequestStream
from engine.client.transport import OnExit, OnMessage
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineDead, EngineError, ModelLoadError
from engine.messages import RequestOutput
from tests.engine.client.stand_in_client import (
    engines,
    leftovers,
    make_client,
    read,
    request,
    running,
    until,
)
from tests.engine.stand_in import StandInProcess, Trap

pytestmark = pytest.mark.usefixtures("own_temporary_folder")


@pytest.mark.asyncio
class TestDeath:
    async def test_kill_9_fails_every_stream_and_the_next_request_works(self) -> None:
        async with running() as client:
            streams = [client.submit(request(str(i))) for i in range(50)]
            await asyncio.gather(*map(anext, streams))
            pid = client.info.pid
            readers = [asyncio.create_task(read(stream)) for stream in streams]
            await asyncio.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(10):  # not until some other time limit finds it out
                results = await asyncio.gather(*readers, return_exceptions=True)
            assert all(isinstance(result, EngineDead) for result in results)
            assert "killed by SIGKILL" in str(results[0])
            assert not client.ready
            with pytest.raises(EngineDead, match="SIGKILL"):
                client.submit(request("too early"))
            with pytest.raises(EngineDead, match="SIGKILL"):
                _ = client.info
            await streams[0].aclose()
            await until(lambda: client.ready)
            assert client.info.pid != pid
            assert await read(client.submit(request("0", max_tokens=3))) == [2, 3, 4]

    async def test_what_came_before_the_death_is_read_first(self) -> None:
        async with running() as client:
            stream = client.submit(request("a"))
            await until(lambda: stream.num_generated_tokens >= 5)
            os.kill(client.info.pid, signal.SIGKILL)
            await until(lambda: not client.ready)
            output = await anext(stream)
            assert len(output.new_token_ids) == stream.num_generated_tokens
            for _ in range(2):
                with pytest.raises(EngineDead):
                    await anext(stream)
            assert stream.finish_reason is None

    @pytest.mark.parametrize(
        ("trap", "reason"),
        [
            (Trap.RAISE, "the engine failed: RuntimeError: a kernel failed"),
            (Trap.EXIT, "exited with code 7"),
        ],
    )
    async def test_a_failing_step(
        self, trap: Trap, reason: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with running() as client:
            with pytest.raises(EngineDead, match=reason):
                await read(client.submit(request("a", [trap])))
            await until(lambda: client.ready)
        # The cause is one line for the client, and a traceback in the engine's own output.
        assert ("a kernel\nfailed" in capfd.readouterr().err) == (trap is Trap.RAISE)

    @pytest.mark.parametrize("how", ["stopped", "in a step", "no progress"])
    async def test_a_hanging_engine_is_replaced(self, how: str) -> None:
        async with running(hang_timeout_s=0.8) as client:
            traps = {"stopped": 1, "in a step": Trap.HANG, "no progress": Trap.STALL}
            stream = client.submit(request("a", [traps[how]]))
            pid = client.info.pid
            if how == "stopped":
                await anext(stream)
                os.kill(pid, signal.SIGSTOP)
            async with asyncio.timeout(10):
                with pytest.raises(EngineDead, match=r"no progress in 0\.8 s"):
                    await read(stream)
            await until(lambda: client.ready)
            assert not psutil.pid_exists(pid)
            assert await read(client.submit(request("b", max_tokens=1))) == [2]

    async def test_an_idle_engine_that_stops_is_found_too(self) -> None:
        async with running(hang_timeout_s=0.8) as client:
            pid = client.info.pid
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: not client.ready)
            await until(lambda: client.ready)
            assert client.info.pid != pid

    async def test_a_death_that_is_noticed_while_looking_is_one_as_well(self) -> None:
        async with running(hang_timeout_s=0.8) as client:
            transport = client._transport
            assert isinstance(transport, StandInProcess)

            def die() -> None:  # as an engine's further clients find out
                del transport.drain
                transport._close()
                transport._on_exit("it is gone")

            pid = client.info.pid
            transport._loop.remove_reader(transport._descriptor)
            transport.drain = die  # type: ignore[method-assign]
            await until(lambda: not client.ready)
            await until(lambda: client.ready)
            assert client.info.pid != pid

    async def test_long_steps_and_a_busy_event_loop_are_no_hang(self) -> None:
        async with running(hang_timeout_s=1.0) as client:
            pid = client.info.pid
            stream = client.submit(request("a", [Trap.SLOW], 20))
            time.sleep(1.2)  # noqa: ASYNC251 (this loop hangs, not the engine)
            assert len(await read(stream)) == 20
            await asyncio.sleep(1.2)
            assert client.info.pid == pid

    async def test_it_keeps_trying_when_a_restart_fails(self) -> None:
        models = iter(["ok", "missing", "crash", "ok"])

        def transport(
            config: EngineConfig, message: OnMessage, leave: OnExit, **told: bool
        ) -> StandInProcess:
            config = msgspec.structs.replace(config, model=next(models))
            return StandInProcess(config, message, leave, **told)  # type: ignore[arg-type]

        client = EngineClient(EngineConfig(model="ok"), transport=transport)
        await client.start()
        try:
            os.kill(client.info.pid, signal.SIGKILL)
            await until(lambda: "missing does not exist" in client._dead_because)
            with pytest.raises(EngineDead, match="missing does not exist"):
                client.submit(request("a"))
            await until(lambda: client.ready)
            assert next(models, None) is None
        finally:
            await client.close()
        assert not leftovers()


@pytest.mark.asyncio
class TestStart:
    @pytest.mark.parametrize(
        ("model", "error", "message"),
        [
            ("missing", ModelLoadError, "missing does not exist: give a model folder"),
            ("wrong", ConfigError, "block_size must be less"),
            ("broken", EngineDead, "the engine failed: KeyError: 'lm_head'"),
            ("crash", EngineDead, "exited with code 9"),
        ],
    )
    async def test_failures_carry_the_engines_message(
        self, model: str, error: type[EngineError], message: str
    ) -> None:
        client = make_client(model)
        with pytest.raises(error, match=message):
            await client.start()
        assert not client.ready
        assert not leftovers()
        await client.close()

    async def test_timeout(self) -> None:
        client = make_client("endless", start_timeout_s=0.5)
        with pytest.raises(EngineDead, match=r"did not start in 0\.5 s"):
            await client.start()
        assert not leftovers()

    async def test_cancelled(self) -> None:
        task = asyncio.create_task(make_client("endless").start())
        await until(lambda: bool(engines()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not leftovers()

    async def test_submit_before_start(self) -> None:
        with pytest.raises(EngineDead, match="has not been started"):
            make_client().submit(request("a"))


@pytest.mark.asyncio
class TestClose:
    async def test_live_streams_end_with_an_error_output(self) -> None:
        async with running() as client:
            stream = client.submit(request("a"))
            await anext(stream)
            reader = asyncio.create_task(self._last(stream))
            await asyncio.sleep(0)
            await client.close()
            last = await reader
            assert (last.finish_reason, last.error_code) == ("error", "internal")
            assert last.error == "the server is shutting down"
            with pytest.raises(EngineDead, match="shut down"):
                client.submit(request("b"))
            await client.close()

    async def _last(self, stream: RequestStream) -> RequestOutput:
        return [output async for output in stream][-1]

    async def test_a_hanging_engine_is_killed_within_the_budget(self) -> None:
        async with running(shutdown_timeout_s=0.3) as client:
            client.submit(request("a", [Trap.HANG]))
            await asyncio.sleep(0.05)
            async with asyncio.timeout(20):
                await client.close()

    async def test_a_cancelled_close_leaves_nothing(self) -> None:
        client = make_client(shutdown_timeout_s=60.0)
        await client.start()
        stopped = psutil.Process(client.info.pid)
        stopped.suspend()
        await until(lambda: stopped.status() == psutil.STATUS_STOPPED)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.close(), 0.2)
        await until(lambda: not leftovers())

    async def test_during_a_restart(self) -> None:
        async with running() as client:
            os.kill(client.info.pid, signal.SIGKILL)
            await until(lambda: not client.ready)

    async def test_without_a_start(self) -> None:
        await make_client().close()


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_all_processes_is_not_for_the_engine(number: signal.Signals) -> None:
    """Ctrl-C in a terminal, and what systemd sends to every process of a service."""
    async with running() as client:
        stream = client.submit(request("a"))
        await anext(stream)
        pid = client.info.pid
        assert os.getpgid(pid) != os.getpgid(0)
        os.kill(pid, number)
        await asyncio.sleep(0.05)
        await anext(stream)
        assert client.info.pid == pid


@pytest.mark.asyncio
async def test_an_idle_engine_uses_no_cpu() -> None:
    async with running() as client:
        process = psutil.Process(client.info.pid)
        await read(client.submit(request("a", max_tokens=5)))
        before = process.cpu_times()
        await asyncio.sleep(0.5)
        after = process.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.1


PARENT = """
import asyncio, os, signal
from tests.engine.client.stand_in_client import make_client, request
async def main():
    client = make_client()
    await client.start()
    client.submit(request("a"))
    await asyncio.sleep(0.05)
    if {stopped}:
        os.kill(client.info.pid, signal.SIGSTOP)
    print(client.info.pid, client._transport._directory, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("stopped", [False, True])
async def test_no_orphan_when_the_client_is_killed(stopped: bool) -> None:
    result = subprocess.run(  # noqa: ASYNC221 (nothing else runs here)
        [sys.executable, "-c", PARENT.format(stopped=stopped)], stdout=subprocess.PIPE, text=True
    )
    pid, directory = result.stdout.split()
    await until(lambda: not alive(int(pid)) and not os.path.exists(directory))


def alive(pid: int) -> bool:
    """A zombie that nobody reaps (there may be no init) is dead."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
