"""An engine that plays scripts, under the real ``EngineClient``.

It stands in for the process at the other end of the socket: what the gateway does with a stream,
an abort, a crash or a full queue is the client's real behaviour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from engine.client.transport import OnExit, OnMessage
from engine.config import EngineConfig
from engine.messages import (
    AbortRequest,
    AdapterAnswer,
    AdapterRef,
    ClientMessage,
    FinishReason,
    GenerateRequest,
    Grant,
    GrantTokens,
    LoadAdapter,
    ParkRequest,
    Ping,
    Ready,
    RequestOutput,
    Shutdown,
    Stats,
    StepOutputs,
    TokenLogprobs,
    UnloadAdapter,
    UnparkRequest,
)
from engine.pooling import Vector
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Play:
    """What the engine does with one request."""

    text: str = ""
    finish_reason: FinishReason = "stop"
    queued_s: float = 0.0
    """Before the first token."""
    interval_s: float = 0.0
    """Between tokens."""
    num_turns: int = 0
    """How many more turns of the event loop pass between tokens."""
    gate: asyncio.Event | None = None
    """Waited for before the first token."""
    at_once: bool = False
    """All tokens in one output."""
    error: str | None = None
    error_code: str | None = None
    num_cached_tokens: int = 0


def echo(prompt: str) -> Play:
    """Answers with the last message's content."""
    said = prompt.rsplit("<|im_start|>", 2)[1].partition("\n")[2].removesuffix("<|im_end|>")
    return Play(text=f"You said: {said}")


def says(text: str) -> Callable[[str], Play]:
    """A script that answers every prompt with this."""
    return lambda prompt: Play(text=text)


@dataclass
class EngineDouble:
    """Give it to ``EngineClient(transport=...)``; it outlives the lives of its engine."""

    tokenizer: Tokenizer
    script: Callable[[str], Play] = echo
    max_model_len: int = 2048
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: dict[str, float] = field(default_factory=dict)
    """Request id to the loop's time."""
    loaded: list[AdapterRef] = field(default_factory=list)
    """A path with "bad" in it does not load."""
    unloaded: list[str] = field(default_factory=list)
    generated: dict[str, int] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    """What it says of itself, but for the number of requests that run."""

    def __call__(self, config: EngineConfig, on_message: OnMessage, on_exit: OnExit) -> Life:
        life = Life(self, on_message, on_exit)
        self.lives.append(life)
        return life

    @property
    def running(self) -> set[str]:
        """Ids of the requests that hold the engine's memory."""
        return set(self.lives[-1].plays)

    def crash(self) -> None:
        self.lives[-1].crash()

    def prompt(self, index: int = -1) -> str:
        ids = self.requests[index].prompt_token_ids
        return self.tokenizer.decode(ids, skip_special_tokens=False)


class Life:
    """One life of the engine: an ``engine.client.transport.Transport``."""

    def __init__(self, double: EngineDouble, on_message: OnMessage, on_exit: OnExit) -> None:
        self.plays: dict[str, asyncio.Task[None]] = {}
        self.parked: set[str] = set()
        self.granted: dict[str, Grant] = {}
        self._double = double
        self._on_message = on_message
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        ready = Ready(
            model="double",
            max_model_len=double.max_model_len,
            vocab_size=double.tokenizer.vocab_size,
            block_size=16,
            num_blocks=100,
            device="cpu",
            pid=0,
        )
        self._loop.call_soon(on_message, ready)

    def send(self, message: ClientMessage) -> None:
        match message:
            case GenerateRequest():
                self._double.requests.append(message)
                if message.num_granted_tokens is not None:
                    grant = Grant(message.request_id, message.num_granted_tokens)
                    self.granted[message.request_id] = grant
                task = asyncio.create_task(self._play(message))
                self.plays[message.request_id] = task
            case AbortRequest():
                self._loop.call_soon(self._abort, message.request_ids)
            case ParkRequest():
                self.parked.update(message.request_ids)
            case GrantTokens():
                self.granted.update((grant.request_id, grant) for grant in message.grants)
            case UnparkRequest():
                self.parked.difference_update(message.request_ids)
            case Ping():
                stats = msgspec.structs.replace(self._double.stats, num_running=len(self.plays))
                self._loop.call_soon(self._on_message, stats)
            case LoadAdapter(call_id, ref):
                self._double.loaded.append(ref)
                bad = "bad" in ref.path
                answer = AdapterAnswer(
                    call_id=call_id,
                    error="r is 99,\nbut max_lora_rank is 16" if bad else None,
                    rank=8,
                    digest="digest",
                    base_model="some/base",
                )
                self._loop.call_soon(self._on_message, answer)
            case UnloadAdapter(call_id, name):
                self._double.unloaded.append(name)
                self._loop.call_soon(self._on_message, AdapterAnswer(call_id=call_id))
            case Shutdown():
                pass

    def drain(self) -> None:
        """Callbacks need no draining."""

    async def stop(self, timeout_s: float) -> None:
        plays = list(self.plays.values())
        for task in plays:
            task.cancel()
        await asyncio.gather(*plays, return_exceptions=True)
        self.plays.clear()

    def retire(self) -> None:
        self._loop.call_soon(self._on_exit, "the engine process exited with code 0")

    def crash(self) -> None:
        for task in self.plays.values():
            task.cancel()
        self.plays.clear()
        self._on_exit("the engine process was killed by SIGKILL")

    async def _play(self, request: GenerateRequest) -> None:
        tokenizer = self._double.tokenizer
        prompt = tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        play = self._double.script(prompt)
        await asyncio.sleep(play.queued_s)
        if play.gate is not None:
            await play.gate.wait()
        if play.error is not None and not play.text:
            self._end(request.request_id, [], play)
            return
        if request.pooling is not None:
            self._end_pooled(request)
            return
        tokens = tokenizer.encode(play.text, add_special_tokens=False)
        limit = request.params.max_tokens
        assert limit is not None
        num_done = 0 if request.progress is None else len(request.progress.token_ids)
        if play.at_once:
            assert request.num_granted_tokens is None, "these come as they are granted"
            self._double.generated[request.request_id] = len(tokens[:limit])
            found = _logprobs(tokens[:limit], request.params.logprobs)
            self._end(request.request_id, tokens[:limit], play, found)
            return
        for number, token in list(enumerate(tokens[:limit]))[num_done:]:
            while self._waits(request, number):  # noqa: ASYNC110 (several may wait)
                await asyncio.sleep(0.001)
            grant = self.granted.get(request.request_id)
            if grant is not None and number >= grant.num_tokens:
                self._end(request.request_id, [], Play(finish_reason="length"))
                return
            self._double.generated[request.request_id] = (
                self._double.generated.get(request.request_id, 0) + 1
            )
            output = RequestOutput(
                request.request_id,
                [token],
                num_cached_tokens=play.num_cached_tokens,
                logprobs=_logprobs([token], request.params.logprobs),
            )
            self._on_message(StepOutputs([output]))
            await asyncio.sleep(play.interval_s)
            for _ in range(play.num_turns):
                await asyncio.sleep(0)
        if len(tokens) >= limit:
            play = Play(finish_reason="length")
        self._end(request.request_id, [], play)

    def _waits(self, request: GenerateRequest, number: int) -> bool:
        if request.request_id in self.parked:
            return True
        grant = self.granted.get(request.request_id)
        return grant is not None and number >= grant.num_tokens and not grant.is_last

    def _end(
        self,
        request_id: str,
        token_ids: list[int],
        play: Play,
        logprobs: list[TokenLogprobs] | None = None,
    ) -> None:
        self.plays.pop(request_id, None)
        output = RequestOutput(
            request_id,
            token_ids,
            finish_reason="error" if play.error is not None else play.finish_reason,
            num_cached_tokens=play.num_cached_tokens,
            error=play.error,
            error_code=play.error_code,
            logprobs=logprobs,
        )
        self._on_message(StepOutputs([output]))

    def _end_pooled(self, request: GenerateRequest) -> None:
        self.plays.pop(request.request_id, None)
        assert request.pooling is not None
        pooled = vector_of(request.prompt_token_ids, request.pooling.second_text)
        output = RequestOutput(request.request_id, [], "stop", pooled=pooled.tobytes())
        self._on_message(StepOutputs([output]))

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            task = self.plays.pop(request_id, None)
            if task is not None:
                task.cancel()
                self._double.aborted[request_id] = self._loop.time()
                output = RequestOutput(request_id, [], finish_reason="abort")
                self._on_message(StepOutputs([output]))


def vector_of(token_ids: list[int], second_text: int | None = None) -> Vector:
    """What the double makes of a prompt."""
    numbers = (len(token_ids), sum(token_ids) % 97, token_ids[0], second_text or 0)
    return np.array(numbers, np.float32) / np.float32(128)


def _logprobs(token_ids: list[int], number: int | None) -> list[TokenLogprobs] | None:
    """Each token at one half, those with the next ids after it."""
    if number is None:
        return None
    return [
        TokenLogprobs(token_id, -0.5, 1, [(token_id + i, -0.5 - i) for i in range(number)])
        for token_id in token_ids
    ]
