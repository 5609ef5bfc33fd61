"""A deterministic core without a model, and an engine process that serves it.

Token ``n`` of a request is ``prompt[n % len(prompt)] + 1``. Special first prompt tokens make it
misbehave: see ``Trap``.
"""

from __future__ import annotations

import enum
import os
import sys
import time
from collections import defaultdict, deque
from typing import NamedTuple

from engine.adapters import OnLoaded
from engine.client.transport import EngineProcess
from engine.config import EngineConfig
from engine.errors import AdapterLoadError, ConfigError, ModelLoadError
from engine.messages import (
    AdapterRef,
    FinishReason,
    GenerateRequest,
    Grant,
    LoadProgress,
    Ready,
    RequestOutput,
    Stats,
    TenantStats,
    TokenLogprobs,
)
from engine.process import Engine, OnProgress, main
from engine.scheduler.queue_limits import Queued

STEP_S = 0.001


class Loaded(NamedTuple):
    rank: int
    digest: str
    base_model: str | None


LOADED = Loaded(8, "digest", "some/base")


class Trap(enum.IntEnum):
    RAISE = 1_000_001
    HANG = 1_000_002
    STALL = 1_000_003
    """The loop goes on, but no step makes progress."""
    EXIT = 1_000_004
    SLOW = 1_000_005
    """50 ms a step."""


class StandInCore:
    """One token per running request and step; four blocks per request."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.num_blocks = 4 * config.num_seqs
        self.waiting: deque[GenerateRequest] = deque()
        self.running: dict[str, tuple[GenerateRequest, int]] = {}
        self.parked: dict[str, tuple[GenerateRequest, int]] = {}
        self.granted: dict[str, Grant] = {}
        self.outputs: list[RequestOutput] = []
        self.loads: list[AdapterRef] = []
        self.unloads: list[str] = []
        self.late: list[OnLoaded] = []
        self.num_steps = self.generation_tokens = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running or self.outputs or self.late)

    def add_request(self, request: GenerateRequest) -> None:
        self.waiting.append(request)
        if request.num_granted_tokens is not None:
            self.grant([Grant(request.request_id, request.num_granted_tokens)])

    def grant(self, grants: list[Grant]) -> None:
        self.granted.update((grant.request_id, grant) for grant in grants)

    def abort(self, request_ids: list[str], *, if_waiting: bool = False) -> None:
        for request_id in request_ids:
            queued = next((r for r in self.waiting if r.request_id == request_id), None)
            if queued is not None:
                self.waiting.remove(queued)
            elif if_waiting or all(
                held.pop(request_id, None) is None for held in (self.running, self.parked)
            ):
                continue
            self.outputs.append(RequestOutput(request_id, [], "abort"))

    def park(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if request_id in self.running:
                self.parked[request_id] = self.running.pop(request_id)

    def unpark(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if request_id in self.parked:
                self.running[request_id] = self.parked.pop(request_id)

    def load_adapter(self, adapter: AdapterRef, on_done: OnLoaded) -> None:
        """A path that begins with "bad" does not load, one with "late" does after the next step,
        one with "never" neither loads nor fails."""
        self.loads.append(adapter)
        if adapter.path.startswith("bad"):
            on_done(AdapterLoadError(f"{adapter.path} does not fit"))
        elif adapter.path.startswith("late"):
            self.late.append(on_done)
        elif not adapter.path.startswith("never"):
            on_done(LOADED)

    def unload_adapter(self, name: str) -> None:
        self.unloads.append(name)

    def step(self) -> list[RequestOutput]:
        late, self.late = self.late, []
        for on_done in late:
            on_done(LOADED)
        outputs, self.outputs = self.outputs, []
        while self.waiting and len(self.running) < self.config.num_seqs:
            request = self.waiting.popleft()
            done = 0 if request.progress is None else len(request.progress.token_ids)
            self.running[request.request_id] = (request, done)
        if not self.running or self._spring_traps():
            return outputs
        time.sleep(STEP_S)
        self.num_steps += 1
        for request_id, (_, done) in list(self.running.items()):
            grant = self.granted.get(request_id)
            if grant is None or done < grant.num_tokens:
                outputs.append(self._advance(request_id))
            elif grant.is_last:
                del self.running[request_id]
                outputs.append(RequestOutput(request_id, [], "length"))
        return outputs

    def stats(self) -> Stats:
        return Stats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_parked=len(self.parked),
            num_queued_reqs=len(self.waiting),
            num_queued_tokens=sum(len(request.prompt_token_ids) for request in self.waiting),
            tenants=[
                TenantStats(name, num_queued=queued.num_reqs, queued_tokens=queued.num_tokens)
                for name, queued in self._queued_by_tenant().items()
            ],
            num_total_blocks=self.num_blocks,
            num_free_blocks=self.num_blocks - 4 * len(self.running),
            num_steps=self.num_steps,
            generation_tokens=self.generation_tokens,
        )

    def _queued_by_tenant(self) -> dict[str, Queued]:
        tenants: defaultdict[str, Queued] = defaultdict(Queued)
        for request in self.waiting:
            tenants[request.fair_key].add(1, len(request.prompt_token_ids))
        return tenants

    def _advance(self, request_id: str) -> RequestOutput:
        request, done = self.running[request_id]
        prompt = request.prompt_token_ids
        self.running[request_id] = (request, done + 1)
        self.generation_tokens += 1
        finish_reason: FinishReason | None = None
        if done + 1 == request.params.max_tokens:
            del self.running[request_id]
            finish_reason = "length"
        token = prompt[done % len(prompt)] + 1
        asked = request.params
        return RequestOutput(
            request_id,
            [token],
            finish_reason,
            num_cached_tokens=len(prompt) // 2,
            logprobs=None if asked.logprobs is None else [TokenLogprobs(token, -float(done), 1)],
            prompt_logprobs=(
                [TokenLogprobs(i, -1.0, 1) for i in prompt[1:]]
                if asked.prompt_logprobs is not None and done == 0
                else None
            ),
        )

    def _spring_traps(self) -> bool:
        first = {request.prompt_token_ids[0] for request, _ in self.running.values()}
        if Trap.RAISE in first:
            raise RuntimeError("a kernel\nfailed")
        if Trap.EXIT in first:
            os._exit(7)
        if Trap.HANG in first:
            time.sleep(3600)
        if Trap.SLOW in first:
            time.sleep(0.05)
        if Trap.STALL in first:
            time.sleep(STEP_S)
        return Trap.STALL in first


def expected_tokens(prompt: list[int], num_tokens: int) -> list[int]:
    return [prompt[n % len(prompt)] + 1 for n in range(num_tokens)]


def build(config: EngineConfig, on_progress: OnProgress) -> Engine:
    """``config.model`` names how loading ends."""
    on_progress(LoadProgress("reading", 0.5))
    match config.model:
        case "missing":
            raise ModelLoadError("missing does not exist: give a model folder")
        case "wrong":
            raise ConfigError("block_size must be less")
        case "broken":
            raise KeyError("lm_head")
        case "crash":
            os._exit(9)
        case "endless":
            time.sleep(3600)
    core = StandInCore(config)
    ready = Ready(
        model=config.model,
        max_model_len=1 << 20,
        vocab_size=1 << 21,
        block_size=config.block_size,
        num_blocks=core.num_blocks,
        device="cpu",
        pid=os.getpid(),
    )
    return Engine(core, ready)


class StandInProcess(EngineProcess):
    """The real transport, with this module at its other end."""

    module = "tests.engine.stand_in"


if __name__ == "__main__":
    sys.exit(main(build))
