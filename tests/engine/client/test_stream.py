"""What a reader gets of one request, however its outputs and its reads fall: no engine is
needed for that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.client import EngineClient
from engine.client.stream import RequestStream
from engine.client.updates import RequestUpdates
from engine.config import EngineConfig
from engine.errors import EngineDead
from engine.messages import (
    AbortRequest,
    ClientMessage,
    GenerateRequest,
    Grant,
    GrantTokens,
    ParkRequest,
    RequestOutput,
    TokenLogprobs,
    UnparkRequest,
)
from engine.sampling_params import SamplingParams


class Playing:
    """A stream whose outputs a test delivers, and what its client sends to the engine."""

    def __init__(self, *, max_unread_tokens: int = 1000) -> None:
        client = EngineClient(EngineConfig(model="none"), max_unread_tokens=max_unread_tokens)
        self.sent: list[ClientMessage] = []
        client._updates = RequestUpdates(self.sent.append)
        self.client = client
        request = GenerateRequest(request_id="r", prompt_token_ids=[1], params=SamplingParams())
        self.stream = RequestStream(client, request)
        client._streams = {"r": self.stream}

    def deliver(self, *token_ids: int, now: float = 0.0, **fields: Any) -> list[float]:
        since: list[float] = []
        self.stream.deliver(RequestOutput("r", list(token_ids), **fields), now, since)
        return since


def logprobs_of(token_ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token_id, -1.0, 1, []) for token_id in token_ids]


async def read_now(stream: RequestStream) -> list[RequestOutput]:
    """What can be read without waiting."""
    found = []
    while stream.is_readable:
        try:
            found.append(await anext(stream))
        except StopAsyncIteration:
            break
    return found


@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    reads=st.sets(st.integers(0, 11)),
    asked=st.booleans(),
    prompt_at=st.sampled_from([None, 0, 1, 2]),
    drafts=st.integers(0, 3),
    cached=st.sampled_from([0, 16]),
    unenforced=st.sampled_from([None, [("not", "$.a")]]),
)
def test_whatever_is_merged_the_reader_gets_all_of_it_once(
    counts: list[int],
    reads: set[int],
    asked: bool,
    prompt_at: int | None,
    drafts: int,
    cached: int,
    unenforced: list[tuple[str, str]] | None,
) -> None:
    async def main() -> None:
        playing, found = Playing(), list[RequestOutput]()
        stream, next_token = playing.stream, 0
        told: list[int] = []
        stream.on_count = told.append
        for index, count in enumerate(counts):
            token_ids = list(range(next_token, next_token + count))
            next_token += count
            is_last = index == len(counts) - 1
            playing.deliver(
                *token_ids,
                finish_reason="stop" if is_last else None,
                stop_reason=7 if is_last else None,
                num_cached_tokens=cached * min(index, 2),
                logprobs=logprobs_of(token_ids) if asked else None,
                prompt_logprobs=logprobs_of([90, 91]) if index == prompt_at else None,
                num_draft_tokens=drafts * index,
                num_accepted_tokens=min(drafts, 1) * index,
                unenforced=unenforced,
            )
            if index in reads:
                found += await read_now(stream)
        found += await read_now(stream)
        assert told == counts
        all_ids = [token_id for output in found for token_id in output.new_token_ids]
        assert all_ids == list(range(next_token))
        assert stream.num_generated_tokens == next_token
        assert stream.num_cached_tokens == cached * min(len(counts) - 1, 2)
        last = found[-1]
        assert [output.finish_reason for output in found[:-1]] == [None] * (len(found) - 1)
        assert (last.finish_reason, last.stop_reason) == ("stop", 7)
        assert stream.finish_reason == "stop"
        drafted = last.num_draft_tokens, last.num_accepted_tokens
        assert drafted == (stream.num_draft_tokens, stream.num_accepted_tokens)
        assert drafted == (drafts * (len(counts) - 1), min(drafts, 1) * (len(counts) - 1))
        assert last.num_cached_tokens == stream.num_cached_tokens
        assert last.unenforced == unenforced
        chosen = [one for output in found for one in output.logprobs or ()]
        assert chosen == (logprobs_of(all_ids) if asked else [])
        prompts = [one.prompt_logprobs for one in found if one.prompt_logprobs is not None]
        has_prompt = prompt_at is not None and prompt_at < len(counts)
        assert prompts == [logprobs_of([90, 91])] * has_prompt

    asyncio.run(main())


def test_the_end_with_an_error_is_merged_too() -> None:
    async def main() -> None:
        playing = Playing()
        playing.deliver(1, 2, num_cached_tokens=16)
        playing.deliver(finish_reason="error", error="too long", error_code="invalid_request")
        (output,) = await read_now(playing.stream)
        assert output.new_token_ids == [1, 2]
        assert (output.finish_reason, output.error) == ("error", "too long")
        assert (output.error_code, output.num_cached_tokens) == ("invalid_request", 16)

    asyncio.run(main())


class TestTake:
    """A callback in place of the reader, as long as nothing waits for that one."""

    def taking(self, *answers: bool) -> tuple[Playing, list[list[int]], list[str]]:
        """A stream, the tokens that its callback was offered, and its changes."""
        playing, offered, changes = Playing(), list[list[int]](), list[str]()
        left = list(answers)

        def take(output: RequestOutput, now: float) -> bool:
            offered.append(list(output.new_token_ids))
            return left.pop(0)

        playing.stream.take = take
        playing.stream.on_change = lambda: changes.append("change")
        return playing, offered, changes

    @pytest.mark.asyncio
    async def test_what_it_takes_nobody_else_sees(self) -> None:
        playing, offered, changes = self.taking(True, True)
        playing.deliver(1)
        playing.deliver(2)
        assert offered == [[1], [2]]
        assert not changes
        assert not playing.stream.is_readable
        assert playing.stream.num_generated_tokens == 2

    @pytest.mark.asyncio
    async def test_behind_what_it_leaves_unread_nothing_is_offered(self) -> None:
        playing, offered, changes = self.taking(False, True)
        playing.deliver(1)
        playing.deliver(2)
        assert offered == [[1]]
        assert not changes, "whoever leaves it sees to it that it is read"
        (output,) = await read_now(playing.stream)
        assert output.new_token_ids == [1, 2]
        playing.deliver(3)
        assert offered == [[1], [3]]

    @pytest.mark.asyncio
    async def test_the_last_output_is_the_readers(self) -> None:
        playing, offered, changes = self.taking()
        playing.deliver(1, finish_reason="length")
        assert not offered
        assert changes == ["change"]
        assert [output.new_token_ids for output in await read_now(playing.stream)] == [[1]]

    @pytest.mark.asyncio
    async def test_what_is_unread_is_offered_again_as_one(self) -> None:
        playing, offered, changes = self.taking(False, True, False, False)
        playing.deliver(1)
        playing.deliver(2)
        playing.stream.offer_again(0.0)
        playing.stream.offer_again(0.0)  # nothing waits any more
        assert offered == [[1], [1, 2]]
        assert not playing.stream.is_readable
        playing.deliver(3)
        playing.stream.offer_again(0.0)
        assert not changes
        assert [output.new_token_ids for output in await read_now(playing.stream)] == [[3]]

    @pytest.mark.asyncio
    async def test_with_the_last_output_all_is_the_readers(self) -> None:
        playing, offered, changes = self.taking(False)
        playing.deliver(1)
        playing.deliver(2, finish_reason="stop")
        assert changes == ["change"]
        playing.stream.offer_again(0.0)
        assert offered == [[1]]
        assert [output.new_token_ids for output in await read_now(playing.stream)] == [[1, 2]]

    @pytest.mark.asyncio
    async def test_to_take_what_was_unread_is_to_read_it(self) -> None:
        """So a request that was parked because it waited goes on."""
        playing, _, _ = self.taking(False, True)
        playing.client._max_unread_tokens = 1
        for token_id in (1, 2):
            playing.deliver(token_id)
        playing.stream.offer_again(0.0)
        assert playing.sent == [ParkRequest(["r"]), UnparkRequest(["r"])]


@pytest.mark.asyncio
async def test_all_who_wait_are_woken() -> None:
    """The reader by every output, whoever waits for the end by that alone."""
    playing = Playing()
    reader = asyncio.ensure_future(anext(playing.stream))
    closing = asyncio.create_task(playing.stream.aclose())
    await asyncio.sleep(0)
    playing.deliver(1)
    assert (await reader).new_token_ids == [1]
    assert not closing.done()
    assert playing.sent == [AbortRequest(["r"])]
    playing.deliver(finish_reason="abort")
    await asyncio.wait_for(closing, 5)
    assert not playing.stream._wakers
    assert not playing.stream.abandoned


@pytest.mark.asyncio
async def test_two_outputs_before_the_reader_runs_wake_it_once() -> None:
    playing = Playing()
    reader = asyncio.ensure_future(anext(playing.stream))
    await asyncio.sleep(0)
    playing.deliver(1)
    playing.deliver(2, finish_reason="stop")
    assert (await reader).new_token_ids == [1, 2]
    with pytest.raises(StopAsyncIteration):
        await anext(playing.stream)


@pytest.mark.asyncio
async def test_after_the_engines_death_comes_what_came_before_and_then_the_error() -> None:
    playing, changes = Playing(), list[str]()
    stream = playing.stream
    stream.on_change = lambda: changes.append("change")
    playing.deliver(1)
    stream.fail(EngineDead("killed by SIGSEGV"))
    assert changes == ["change"] * 2
    assert stream.is_finished
    assert (await anext(stream)).new_token_ids == [1]
    for _ in range(2):
        assert stream.is_readable
        with pytest.raises(EngineDead, match="SIGSEGV"):
            await anext(stream)
    await stream.aclose()
    assert stream.finish_reason is None


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["finished", "dead"])
async def test_nothing_is_sent_for_what_has_ended(end: str) -> None:
    playing = Playing()
    stream = playing.stream
    stream.grant(9)
    stream.close()
    before = list(playing.sent)
    assert before == [GrantTokens([Grant("r", 9)]), AbortRequest(["r"])]
    if end == "finished":
        playing.deliver(finish_reason="abort")
    else:
        stream.fail(EngineDead("gone"))
    stream.grant(10)
    stream.close()
    await stream.aclose()
    assert playing.sent == before


@pytest.mark.asyncio
async def test_a_request_is_parked_for_its_unread_tokens_and_goes_on_when_they_are_read() -> None:
    playing = Playing(max_unread_tokens=3)
    for token_id in range(3):
        playing.deliver(token_id)
    assert not playing.sent
    playing.deliver(3)
    playing.deliver(4)
    assert playing.sent == [ParkRequest(["r"])]
    assert (await anext(playing.stream)).new_token_ids == [0, 1, 2, 3, 4]
    assert playing.sent == [ParkRequest(["r"]), UnparkRequest(["r"])]


def test_the_pause_that_a_reader_makes_is_no_gap_between_tokens() -> None:
    playing = Playing()
    assert playing.deliver(1, now=1.0) == []
    assert playing.deliver(2, now=2.0) == [1.0]
    playing.stream.break_off_timing()
    assert playing.deliver(3, now=50.0) == []
    assert playing.deliver(now=51.0) == []
    assert playing.deliver(4, 5, now=52.0) == [51.0, 51.0]
