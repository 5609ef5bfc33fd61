from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import uvloop

from engine.client import FRESH_S, EngineClient, RequestStream
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineDead, EngineError, ModelLoadError, QueueFull
from engine.messages import (
    GenerateRequest,
    LoadProgress,
    RequestOutput,
    SamplingParams,
    TokenLogprobs,
)
from engine.transport import OnExit, OnMessage
from tests.engine.stand_in import StandInProcess, Trap, expected_tokens

ENDLESS = 1 << 30


def make_client(model: str = "ok", max_num_seqs: int = 256, **options: object) -> EngineClient:
    config = EngineConfig(model=model, max_num_seqs=max_num_seqs)
    return EngineClient(config, transport=StandInProcess, **options)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running(**options: object) -> AsyncIterator[EngineClient]:
    client = make_client(**options)  # type: ignore[arg-type]
    await client.start()
    try:
        yield client
    finally:
        await client.close()
        assert not leftovers()


_others: set[psutil.Process] = set()
"""Processes that were there before the test, such as the suite's PostgreSQL."""


def leftovers() -> list[object]:
    """Engine processes of ours, and folders for their sockets."""
    folders = Path(tempfile.gettempdir()).iterdir()
    ours = set(psutil.Process().children(recursive=True)) - _others
    return [*ours, *folders]


@pytest.fixture(autouse=True)
def _temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ours alone, so that what is left there is ours; a short path, for the socket's sake."""
    _others.clear()
    _others.update(psutil.Process().children(recursive=True))
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


def request(
    request_id: str, prompt: list[int] | None = None, max_tokens: int = ENDLESS
) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt or [1, 2, 3],
        params=SamplingParams(max_tokens=max_tokens),
    )


async def read(stream: RequestStream) -> list[int]:
    tokens: list[int] = []
    async for output in stream:
        tokens += output.new_token_ids
    return tokens


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> float:
    """Seconds until it holds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s
        await asyncio.sleep(0.002)
    return time.monotonic() - start


@pytest.mark.asyncio
class TestServing:
    async def test_a_request_end_to_end(self) -> None:
        progress: list[LoadProgress] = []
        async with running(on_progress=progress.append) as client:
            assert client.ready
            assert client.info.pid != os.getpid()
            stream = client.submit(request("a", max_tokens=7))
            outputs = [output async for output in stream]
            assert [t for o in outputs for t in o.new_token_ids] == expected_tokens([1, 2, 3], 7)
            assert [o.finish_reason for o in outputs] == [None] * (len(outputs) - 1) + ["length"]
            assert (stream.num_generated_tokens, stream.num_cached_tokens) == (7, 1)
            assert stream.finish_reason == "length"
        assert progress == [LoadProgress("starting", 0.0), LoadProgress("reading", 0.5)]

    async def test_200_concurrent_streams(self) -> None:
        async with running() as client:
            prompts = [[i, i + 1, i + 2] for i in range(200)]
            streams = [client.submit(request(str(i), p, 50)) for i, p in enumerate(prompts)]
            results = await asyncio.gather(*map(read, streams))
        assert results == [expected_tokens(prompt, 50) for prompt in prompts]

    async def test_outputs_can_be_diverted_while_they_are_waited_for(self) -> None:
        async with running() as client:
            stream = client.submit(request("a", max_tokens=40))
            diverted: list[int] = []
            offered = 0

            def divert(output: RequestOutput) -> bool:
                nonlocal offered
                offered += 1
                assert output.finish_reason is None
                if offered % 3 == 0:
                    return False
                diverted.extend(output.new_token_ids)
                return True

            tokens, reads = list[int](), 0
            while stream.finish_reason is None:
                await stream.wait(divert)
                tokens += diverted
                diverted.clear()
                async for output in stream:
                    tokens += output.new_token_ids
                    break
                reads += 1
            assert tokens == expected_tokens([1, 2, 3], 40)
            assert offered > reads > 1
            assert stream.num_generated_tokens == 40

    async def test_a_cancelled_wait_diverts_no_more(self) -> None:
        async with running() as client:
            stream = client.submit(request("a", max_tokens=20))
            diverted: list[RequestOutput] = []
            waiting = asyncio.create_task(stream.wait(lambda output: not diverted.append(output)))
            await until(lambda: bool(diverted))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            num_diverted = len(diverted)
            tokens = [t for output in diverted for t in output.new_token_ids]
            tokens += await read(stream)
            assert tokens == expected_tokens([1, 2, 3], 20)
            assert len(diverted) == num_diverted

    async def test_a_slow_reader_gets_merged_outputs_and_all_tokens(self) -> None:
        async with running(max_unread_tokens=300) as client:
            stream = client.submit(request("slow", max_tokens=300))
            other = client.submit(request("fast", max_tokens=400))
            assert len(await read(other)) == 400
            outputs = [output async for output in stream]
        assert len(outputs) == 1
        assert outputs[0].new_token_ids == expected_tokens([1, 2, 3], 300)
        assert outputs[0].finish_reason == "length"
        assert outputs[0].num_cached_tokens == 1

    async def test_merged_outputs_keep_their_logprobs(self) -> None:
        params = SamplingParams(max_tokens=50, logprobs=0, prompt_logprobs=0)
        async with running() as client:
            slow = client.submit(
                GenerateRequest(request_id="slow", prompt_token_ids=[1, 2, 3], params=params)
            )
            assert len(await read(client.submit(request("fast", max_tokens=100)))) == 100
            (output,) = [output async for output in slow]
        tokens = expected_tokens([1, 2, 3], 50)
        assert output.new_token_ids == tokens
        assert output.logprobs == [TokenLogprobs(t, -float(i), 1) for i, t in enumerate(tokens)]
        assert output.prompt_logprobs == [TokenLogprobs(t, -1.0, 1) for t in (2, 3)]

    async def test_cancelling_a_read_loses_nothing(self) -> None:
        async with running() as client:
            stream = client.submit(request("a", max_tokens=100))
            tokens: list[int] = []
            while stream.finish_reason is None or stream._pending is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        tokens += (await anext(stream)).new_token_ids
        assert tokens == expected_tokens([1, 2, 3], 100)

    async def test_too_many_queued_requests_are_refused(self) -> None:
        async with running(max_num_seqs=1, max_num_queued_reqs=3) as client:
            first = client.submit(request("first"))
            await anext(first)
            queued = [client.submit(request(f"q{i}", max_tokens=1)) for i in range(3)]
            with pytest.raises(QueueFull, match="max_num_queued_reqs = 3"):
                client.submit(request("one too many"))
            first.close()
            assert [len(await read(stream)) for stream in queued] == [1, 1, 1]
            assert await read(client.submit(request("later", max_tokens=2))) == [2, 3]

    async def test_fetch_stats(self) -> None:
        async with running() as client:
            streams = [client.submit(request(str(i))) for i in range(3)]
            await asyncio.gather(*map(anext, streams))
            stats = await client.fetch_stats()
            assert stats.num_running == 3
            assert stats.num_free_blocks == stats.num_total_blocks - 12
            assert client.stats == stats


@pytest.mark.asyncio
class TestQueue:
    """The stand-in takes whatever it is sent: refusals here are the client's."""

    @contextlib.asynccontextmanager
    async def full(self, **limits: int) -> AsyncIterator[EngineClient]:
        """One request runs, two of one tenant wait, and the engine was asked half a second ago."""
        config = EngineConfig(model="ok", max_num_seqs=1, **limits)
        client = EngineClient(config, transport=StandInProcess)
        await client.start()
        try:
            await anext(client.submit(request("running")))
            for i in range(2):
                client.submit(self.of("loud", f"loud{i}"))
            yield client
        finally:
            await client.close()

    def of(self, fair_key: str, request_id: str) -> GenerateRequest:
        return msgspec.structs.replace(request(request_id), fair_key=fair_key)

    @pytest.mark.parametrize(
        ("limit", "others_wait"),
        [
            ({"max_num_queued_reqs": 2}, True),
            ({"max_num_queued_tokens": 6}, True),
            ({"max_num_queued_reqs_per_tenant": 2}, False),
        ],
    )
    async def test_one_more_is_refused_before_it_is_sent(
        self, limit: dict[str, int], others_wait: bool
    ) -> None:
        async with self.full(**limit) as client:
            with pytest.raises(QueueFull, match=next(iter(limit))):
                await client.check_queue("loud")
            if others_wait:
                with pytest.raises(QueueFull):
                    await client.check_queue("quiet")
            else:
                await client.check_queue("quiet")

    async def test_room_is_seen_at_once(self) -> None:
        """Not when the client asks next for its own purposes, up to a second later."""
        async with self.full(max_num_queued_reqs=2) as client:
            with pytest.raises(QueueFull):
                await client.check_queue("")
            await client.abort("loud0")
            await asyncio.sleep(FRESH_S)
            start = time.monotonic()
            await client.check_queue("")
            assert time.monotonic() - start < 0.3

    async def test_a_thousand_callers_ask_once(self) -> None:
        async with self.full(max_num_queued_reqs=2) as client:
            await asyncio.sleep(FRESH_S)
            pings = len(client._pings)
            checks = [asyncio.create_task(client.check_queue("")) for _ in range(1000)]
            await asyncio.sleep(0)
            assert len(client._pings) <= pings + 1
            results = await asyncio.gather(*checks, return_exceptions=True)
            assert all(isinstance(result, QueueFull) for result in results)

    async def test_while_there_is_room_nobody_is_asked(self) -> None:
        async with self.full(max_num_queued_reqs=3) as client:
            pings = len(client._pings)
            await client.check_queue("")
            assert len(client._pings) <= pings


@pytest.mark.asyncio
class TestStalledReaders:
    async def test_what_nobody_reads_is_parked_and_goes_on_when_somebody_does(self) -> None:
        async with running(max_unread_tokens=20) as client:
            stalled = client.submit(request("stalled", max_tokens=100))
            tokens = (await anext(stalled)).new_token_ids
            other = client.submit(request("other", max_tokens=150))
            assert len(await read(other)) == 150, "who reads is not slowed"
            assert (await client.fetch_stats()).num_parked == 1
            # What was on its way when it was parked comes, too, but no more.
            assert stalled.num_generated_tokens < 60
            tokens += await read(stalled)
            assert tokens == expected_tokens([1, 2, 3], 100)
            assert stalled.finish_reason == "length"
            assert (await client.fetch_stats()).num_parked == 0
            assert not client._parked

    async def test_a_slow_reader_gets_everything(self) -> None:
        async with running(max_unread_tokens=5) as client:
            stream = client.submit(request("slow", max_tokens=80))
            tokens: list[int] = []
            async for output in stream:
                tokens += output.new_token_ids
                await asyncio.sleep(0.02)
            assert tokens == expected_tokens([1, 2, 3], 80)

    async def test_one_that_stays_away_is_aborted(self) -> None:
        async with running(max_unread_tokens=5, stall_timeout_s=0.2) as client:
            stream = client.submit(request("gone"))
            await until(lambda: stream.finish_reason is not None)
            assert stream.abandoned
            assert len(await read(stream)) == stream.num_generated_tokens
            assert stream.finish_reason == "abort"
            stats = await client.fetch_stats()
            assert (stats.num_running, stats.num_parked) == (0, 0)
            assert not client._parked

    async def test_reading_in_time_saves_it(self) -> None:
        async with running(max_unread_tokens=5, stall_timeout_s=0.4) as client:
            stream = client.submit(request("slow", max_tokens=200))
            start = time.monotonic()
            while time.monotonic() - start < 1.0 and stream.finish_reason is None:
                await anext(stream)
                await asyncio.sleep(0.15)
            assert not stream.abandoned
            await read(stream)
            assert stream.finish_reason == "length"

    async def test_closing_a_parked_stream(self) -> None:
        async with running(max_unread_tokens=5) as client:
            stream = client.submit(request("a"))
            await until(lambda: bool(client._parked))
            await stream.aclose()
            assert stream.finish_reason == "abort"
            assert not client._parked
            assert not client._unsent_parks

    async def test_a_death_forgets_who_was_parked(self) -> None:
        async with running(max_unread_tokens=5) as client:
            client.submit(request("a"))
            await until(lambda: bool(client._parked))
            os.kill(client.info.pid, signal.SIGKILL)
            await until(lambda: not client.ready)
            assert not client._parked
            await until(lambda: client.ready)
            assert await read(client.submit(request("b", max_tokens=2))) == [2, 3]


@pytest.mark.asyncio
class TestAbort:
    async def test_close_frees_the_blocks_at_once_and_counts_exactly(self) -> None:
        async with running() as client:
            stream = client.submit(request("a"))
            first = await anext(stream)
            start = time.monotonic()
            stream.close()
            stream.close()
            stats = await client.fetch_stats()
            assert time.monotonic() - start < 0.1
            assert stats.num_free_blocks == stats.num_total_blocks
            tokens = first.new_token_ids + await read(stream)
            assert stream.finish_reason == "abort"
            # Not one token more or less than the engine generated.
            assert len(tokens) == stream.num_generated_tokens == stats.generation_tokens

    async def test_aclose_waits_for_the_last_word(self) -> None:
        async with running() as client:
            stream = client.submit(request("a"))
            await anext(stream)
            await stream.aclose()
            assert stream.finish_reason == "abort"
            assert stream.num_generated_tokens == (await client.fetch_stats()).generation_tokens
            await stream.aclose()

    async def test_a_queued_request(self) -> None:
        async with running(max_num_seqs=1) as client:
            first = client.submit(request("first"))
            await anext(first)
            queued = client.submit(request("queued"))
            await client.abort("queued")
            assert (queued.finish_reason, queued.num_generated_tokens) == ("abort", 0)
            assert (await client.fetch_stats()).num_waiting == 0
            await anext(first)

    async def test_unknown_and_finished_ids_are_ignored(self) -> None:
        async with running() as client:
            stream = client.submit(request("a", max_tokens=2))
            assert len(await read(stream)) == 2
            client.abort_nowait("a")
            await client.abort("never heard of")
            await stream.aclose()
            assert stream.finish_reason == "length"

    async def test_an_abort_while_reading_ends_the_stream(self) -> None:
        async with running() as client:
            stream = client.submit(request("a"))
            reader = asyncio.create_task(read(stream))
            await asyncio.sleep(0.05)
            stream.close()
            tokens = await asyncio.wait_for(reader, 1)
            assert tokens == expected_tokens([1, 2, 3], stream.num_generated_tokens)


@pytest.mark.asyncio
class TestDeath:
    async def test_kill_9_fails_every_stream_and_the_next_request_works(self) -> None:
        async with running() as client:
            streams = [client.submit(request(str(i))) for i in range(50)]
            await asyncio.gather(*map(anext, streams))
            pid = client.info.pid
            readers = [asyncio.create_task(read(stream)) for stream in streams]
            await asyncio.sleep(0.02)
            start = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            results = await asyncio.gather(*readers, return_exceptions=True)
            assert time.monotonic() - start < 0.2
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
        async with running(hang_timeout_s=0.4) as client:
            trap = {"stopped": [1], "in a step": [Trap.HANG], "no progress": [Trap.STALL]}[how]
            stream = client.submit(request("a", list(trap)))
            pid = client.info.pid
            if how == "stopped":
                await anext(stream)
                os.kill(pid, signal.SIGSTOP)
            start = time.monotonic()
            with pytest.raises(EngineDead, match=r"no progress in 0\.4 s"):
                await read(stream)
            assert time.monotonic() - start < 1.0
            await until(lambda: client.ready)
            assert not psutil.pid_exists(pid)
            assert await read(client.submit(request("b", max_tokens=1))) == [2]

    async def test_an_idle_engine_that_stops_is_found_too(self) -> None:
        async with running(hang_timeout_s=0.4) as client:
            pid = client.info.pid
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: not client.ready)
            await until(lambda: client.ready)
            assert client.info.pid != pid

    async def test_long_steps_and_a_busy_event_loop_are_no_hang(self) -> None:
        async with running(hang_timeout_s=0.4) as client:
            pid = client.info.pid
            stream = client.submit(request("a", [Trap.SLOW], 20))
            time.sleep(0.6)  # noqa: ASYNC251 (this loop hangs, not the engine)
            assert len(await read(stream)) == 20
            await asyncio.sleep(0.6)
            assert client.info.pid == pid

    async def test_it_keeps_trying_when_a_restart_fails(self) -> None:
        models = iter(["ok", "missing", "crash", "ok"])

        def transport(config: EngineConfig, message: OnMessage, leave: OnExit) -> StandInProcess:
            return StandInProcess(
                msgspec.structs.replace(config, model=next(models)), message, leave
            )

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
        await until(lambda: bool(psutil.Process().children()))
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
            start = time.monotonic()
            await client.close()
            assert time.monotonic() - start < 1.0

    async def test_a_cancelled_close_leaves_nothing(self) -> None:
        client = make_client(shutdown_timeout_s=60.0)
        await client.start()
        client.submit(request("a", [Trap.HANG]))
        await asyncio.sleep(0.05)
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
async def test_ctrl_c_in_the_terminal_is_not_for_the_engine() -> None:
    async with running() as client:
        stream = client.submit(request("a"))
        await anext(stream)
        pid = client.info.pid
        assert os.getpgid(pid) != os.getpgid(0)
        os.kill(pid, signal.SIGINT)
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
    assert after.user + after.system - before.user - before.system <= 0.02


PARENT = """
import asyncio, os, signal
from tests.engine.test_client import make_client, request
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
    await until(lambda: not alive(int(pid)), 2.0)
    assert not os.path.exists(directory)  # noqa: ASYNC240


def alive(pid: int) -> bool:
    """A zombie that nobody reaps (there may be no init) is dead."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.asyncio
async def test_without_torch() -> None:
    code = "import engine.client, sys; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: ASYNC221


def test_under_uvloop() -> None:
    async def main() -> None:
        async with running() as client:
            streams = [client.submit(request(str(i), [i + 1], 30)) for i in range(50)]
            results = await asyncio.gather(*map(read, streams))
            assert results == [[i + 2] * 30 for i in range(50)]
            stream = client.submit(request("a"))
            await anext(stream)
            os.kill(client.info.pid, signal.SIGKILL)
            with pytest.raises(EngineDead):
                await read(stream)
            await until(lambda: client.ready)

    uvloop.run(main())
