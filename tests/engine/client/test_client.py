"""Requests to an engine and the streams that answer them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import uvloop

import engine.client.client
from engine.client.client import FRESH_S, EngineClient
from engine.config import EngineConfig
from engine.errors import EngineDead, QueueFull
from engine.messages import (
    ClientMessage,
    GenerateRequest,
    LoadProgress,
    RequestOutput,
    TokenLogprobs,
)
from engine.sampling_params import SamplingParams
from tests.engine.client.stand_in_client import read, request, running, until
from tests.engine.stand_in import StandInProcess, expected_tokens

pytestmark = pytest.mark.usefixtures("own_temporary_folder")


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
        assert progress == [LoadProgress("Starting", 0.0), LoadProgress("reading", 0.5)]

    async def test_200_concurrent_streams(self) -> None:
        async with running() as client:
            prompts = [[i, i + 1, i + 2] for i in range(200)]
            streams = [client.submit(request(str(i), p, 50)) for i, p in enumerate(prompts)]
            results = await asyncio.gather(*map(read, streams))
        assert results == [expected_tokens(prompt, 50) for prompt in prompts]

    async def test_outputs_can_be_taken_as_they_come_or_when_they_are_offered_again(self) -> None:
        async with running() as client:
            stream = client.submit(request("slow", max_tokens=40))
            taken, changes, is_due = list[int](), list[bool](), False

            def take(output: RequestOutput, now: float) -> bool:
                assert 0 <= time.monotonic() - now < 1
                assert output.finish_reason is None
                if is_due:
                    taken.extend(output.new_token_ids)
                return is_due

            stream.take = take
            stream.on_change = lambda: changes.append(stream.is_finished)
            stream.offer_again(0.0)  # nothing waits
            await until(lambda: stream.num_generated_tokens >= 5)
            assert not changes
            is_due = True
            stream.offer_again(time.monotonic())
            assert len(taken) == stream.num_generated_tokens, "all in one"
            assert not stream.is_readable
            await until(lambda: stream.num_generated_tokens >= 10)
            assert len(taken) == stream.num_generated_tokens
            is_due = False
            await until(lambda: stream.is_finished)
            assert changes == [True], "the end is not put off"
            assert taken + await read(stream) == expected_tokens([1, 2, 3], 40)

    async def test_a_change_is_told_of_once_however_much_is_merged_into_it(self) -> None:
        async with running() as client:
            stream = client.submit(request("slow", max_tokens=30))
            changes: list[bool] = []
            stream.on_change = lambda: changes.append(stream.is_finished)
            await until(lambda: stream.is_finished)
            assert stream.is_readable
            assert changes == [False, True]
            assert await read(stream) == expected_tokens([1, 2, 3], 30)
            assert stream.is_readable  # its end

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

    @pytest.fixture(autouse=True)
    def _asked_on_demand_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine.client.client, "PING_INTERVAL_S", 3600.0)

    @contextlib.asynccontextmanager
    async def full(self, **limits: Any) -> AsyncIterator[EngineClient]:
        """One request runs, and two of one tenant wait."""
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
        "limit",
        [
            {"max_num_queued_reqs": 2},
            {"max_num_queued_tokens": 6},
            {"max_num_queued_reqs_per_tenant": 2},
        ],
    )
    async def test_one_more_is_refused_before_it_is_sent(self, limit: dict[str, int]) -> None:
        async with self.full(**limit) as client:
            with pytest.raises(QueueFull, match=next(iter(limit))):
                await client.check_queue("loud")
            await client.check_queue("quiet")

    async def test_the_own_limit_too_refuses_only_who_has_its_part(self) -> None:
        async with running(max_num_seqs=1, max_num_queued_reqs=4) as client:
            await anext(client.submit(self.of("loud", "running")))
            for i in range(4):
                client.submit(self.of("loud", f"loud{i}"))
            with pytest.raises(QueueFull):
                client.submit(self.of("loud", "one too many"))
            for i in range(2):
                client.submit(self.of("quiet", f"quiet{i}"))
            with pytest.raises(QueueFull):
                client.submit(self.of("quiet", "one too many"))

    async def test_room_is_seen_at_once(self) -> None:
        """Not when the client asks next for its own purposes."""
        async with self.full(max_num_queued_reqs=2) as client:
            with pytest.raises(QueueFull):
                await client.check_queue("loud")
            await client.abort("loud0")
            await asyncio.sleep(FRESH_S)
            async with asyncio.timeout(10):
                await client.check_queue("loud")

    async def test_a_thousand_callers_ask_once(self) -> None:
        async with self.full(max_num_queued_reqs=2) as client:
            await asyncio.sleep(FRESH_S)
            pings = len(client._pings)
            checks = [asyncio.create_task(client.check_queue("loud")) for _ in range(1000)]
            await asyncio.sleep(0)
            assert len(client._pings) <= pings + 1
            results = await asyncio.gather(*checks, return_exceptions=True)
            assert all(isinstance(result, QueueFull) for result in results)

    async def test_while_there_is_room_nobody_is_asked(self) -> None:
        async with self.full(max_num_queued_reqs=3) as client:
            pings = len(client._pings)
            await client.check_queue("loud")
            assert len(client._pings) <= pings


@pytest.mark.asyncio
class TestStalledReaders:
    async def test_what_nobody_reads_is_parked_and_goes_on_when_somebody_does(self) -> None:
        async with running(max_unread_tokens=20) as client:
            stalled = client.submit(request("stalled", max_tokens=1000))
            tokens = (await anext(stalled)).new_token_ids
            await until(lambda: bool(client._parked))
            # What was on its way when it was parked comes, too, but no more.
            assert (await client.fetch_stats()).num_parked == 1
            num_tokens = stalled.num_generated_tokens
            other = client.submit(request("other", max_tokens=150))
            assert len(await read(other)) == 150, "who reads is not slowed"
            assert stalled.num_generated_tokens == num_tokens < 1000
            tokens += await read(stalled)
            assert tokens == expected_tokens([1, 2, 3], 1000)
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
        async with running(max_unread_tokens=5, stall_timeout_s=1.5) as client:
            stream = client.submit(request("slow", max_tokens=400))
            start = time.monotonic()
            while time.monotonic() - start < 2.0 and stream.finish_reason is None:
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
            assert not client._updates

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
class TestGrants:
    async def test_a_request_stops_where_its_grant_ends_and_goes_on_with_the_next(self) -> None:
        async with running() as client:
            stream = client.submit(request("a", num_granted_tokens=5))
            for granted in (5, 8):
                stream.grant(granted)
                await until(lambda: stream.num_generated_tokens == granted)  # noqa: B023
                await asyncio.sleep(0.05)
                assert (await client.fetch_stats()).generation_tokens == granted
            stream.grant(11, is_last=True)
            assert await read(stream) == expected_tokens([1, 2, 3], 11)
            assert stream.finish_reason == "length"
            stream.grant(99)
            assert not client._updates

    async def test_what_the_socket_does_not_take_is_sent_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with running() as client:
            stream = client.submit(request("a", num_granted_tokens=5))
            await until(lambda: stream.num_generated_tokens == 5)
            send = client._transport.send  # type: ignore[union-attr]

            def refuse(message: ClientMessage) -> None:
                raise QueueFull("it does not read")

            monkeypatch.setattr(client._transport, "send", refuse)
            stream.grant(7)
            stream.grant(9, is_last=True)
            monkeypatch.setattr(client._transport, "send", send)
            assert await read(stream) == expected_tokens([1, 2, 3], 9)


@pytest.mark.asyncio
class TestAbort:
    async def test_close_frees_the_blocks_at_once_and_counts_exactly(self) -> None:
        async with running() as client:
            stream = client.submit(request("a"))
            first = await anext(stream)
            stream.close()
            stream.close()
            stats = await client.fetch_stats()  # asked after the abort: nothing else is waited for
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
            tokens = await asyncio.wait_for(reader, 30)
            assert tokens == expected_tokens([1, 2, 3], stream.num_generated_tokens)


@pytest.mark.asyncio
async def test_without_torch() -> None:
    code = (
        "import engine.client.client, sys\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
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
