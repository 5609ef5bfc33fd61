"""An engine without a model: every answer is the same text, at a fixed pace.

To measure the gateway by itself, and to build front ends against answers that take their time.
Started by ``transport.ReplayProcess`` as ``python -m engine.replay TOKENS_PER_S``.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from engine.adapters import OnLoaded
from engine.config import EngineConfig
from engine.errors import AdapterLoadError, ModelLoadError
from engine.launch import ABORTS_ENV
from engine.messages import (
    AdapterRef,
    FinishReason,
    GenerateRequest,
    Grant,
    LoadProgress,
    Ready,
    RequestOutput,
    Stats,
)
from engine.process import Engine, OnProgress, main
from engine.text.tokenizer import Tokenizer

TEXT = """\
The quick brown fox jumps over the lazy dog. A stream of words is best when it neither stalls nor \
hurries: a reader forgives a slow pace sooner than an uneven one. So this text comes one token \
after the other, as steadily as a clock ticks, and says nothing that would distract from that.

1. It begins at once.
2. It goes on evenly.
3. It ends when it has been told to, or here.
"""
STEP_S = 0.002
"""Least time from one step to the next: as an engine's steps do, each serves many requests."""


class _ModelConfig(msgspec.Struct):
    max_position_embeddings: int
    vocab_size: int


class ReplayCore:
    """Sends each request the tokens of ``text``, ``tokens_per_s`` a second."""

    def __init__(
        self,
        text: Sequence[int],
        tokens_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_abort: Callable[[str], None] | None = None,
    ) -> None:
        """``on_abort`` is called with the id of each request that is aborted while it runs."""
        self._on_abort = on_abort
        self._text = text
        self._interval_s = 1 / tokens_per_s
        self._clock = clock
        self._sleep = sleep
        self._running: dict[str, tuple[GenerateRequest, int]] = {}
        """Each with the number of tokens sent so far."""
        self._due: list[tuple[float, int, str]] = []
        """A heap of when each request's next token is due; aborted ones stay until then."""
        self._arrivals = itertools.count()
        self._outputs: list[RequestOutput] = []
        self._parked: set[str] = set()
        self._overdue: set[str] = set()
        """Parked requests whose next token has come due."""
        self._granted: dict[str, Grant] = {}
        """The latest grant of requests that run on grants."""
        self._ungranted: set[str] = set()
        """Requests that have used up their grant."""
        self._stepped_at = -math.inf
        self._num_steps = 0
        self._generation_tokens = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self._running or self._outputs)

    def add_request(self, request: GenerateRequest) -> None:
        if request.params.structured_outputs is not None:
            refusal = "structured outputs need a model: this server replays a fixed text"
            self._outputs.append(
                RequestOutput(
                    request.request_id, [], "error", error=refusal, error_code="invalid_request"
                )
            )
            return
        num_sent = 0 if request.progress is None else len(request.progress.token_ids)
        self._running[request.request_id] = (request, num_sent)
        if request.num_granted_tokens is not None:
            self._granted[request.request_id] = Grant(
                request.request_id, request.num_granted_tokens
            )
        heapq.heappush(self._due, (self._clock(), next(self._arrivals), request.request_id))

    def abort(self, request_ids: list[str], *, if_waiting: bool = False) -> None:
        for request_id in request_ids:
            if request_id in self._running and not if_waiting:  # All run at once.
                if self._on_abort is not None:
                    self._on_abort(request_id)
                self._forget(request_id)
                self._outputs.append(RequestOutput(request_id, [], "abort"))

    def park(self, request_ids: list[str]) -> None:
        self._parked.update(self._running.keys() & request_ids)

    def unpark(self, request_ids: list[str]) -> None:
        for request_id in self._parked.intersection(request_ids):
            self._parked.remove(request_id)
            if request_id in self._overdue:
                self._overdue.remove(request_id)
                heapq.heappush(self._due, (self._clock(), next(self._arrivals), request_id))

    def load_adapter(self, adapter: AdapterRef, on_done: OnLoaded) -> None:
        on_done(AdapterLoadError("adapters need a model: this server replays a fixed text"))

    def unload_adapter(self, name: str) -> None:
        """A replay has no adapters."""

    def grant(self, grants: list[Grant]) -> None:
        for grant in grants:
            if grant.request_id not in self._running:
                continue
            self._granted[grant.request_id] = grant
            _, num_sent = self._running[grant.request_id]
            if grant.is_last and num_sent >= grant.num_tokens:
                self._forget(grant.request_id)
                self._outputs.append(RequestOutput(grant.request_id, [], "length"))
            elif grant.request_id in self._ungranted:
                self._ungranted.remove(grant.request_id)
                heapq.heappush(self._due, (self._clock(), next(self._arrivals), grant.request_id))

    def step(self) -> list[RequestOutput]:
        """All tokens that are due; no sooner than ``STEP_S`` after the step before."""
        if (early_s := self._stepped_at + STEP_S - self._clock()) > 0:
            self._sleep(early_s)
        now = self._stepped_at = self._clock()
        self._num_steps += 1
        outputs, self._outputs = self._outputs, []
        while self._due and self._due[0][0] <= now:
            due_s, arrival, request_id = heapq.heappop(self._due)
            if request_id not in self._running:
                continue
            if request_id in self._parked:
                self._overdue.add(request_id)
                continue
            grant = self._granted.get(request_id)
            if grant is not None and self._running[request_id][1] >= grant.num_tokens:
                self._ungranted.add(request_id)
                continue
            output = self._advance(request_id)
            outputs.append(output)
            if output.finish_reason is None:
                heapq.heappush(self._due, (due_s + self._interval_s, arrival, request_id))
        return outputs

    def _advance(self, request_id: str) -> RequestOutput:
        request, num_sent = self._running[request_id]
        grant = self._granted.get(request_id)
        self._generation_tokens += 1
        finish_reason: FinishReason | None = None
        is_granted = grant is None or not grant.is_last or num_sent + 1 < grant.num_tokens
        if num_sent + 1 == request.params.max_tokens or not is_granted:
            finish_reason = "length"
        elif (num_sent + 1) % len(self._text) == 0 and not request.params.ignore_eos:
            finish_reason = "stop"
        if finish_reason is None:
            self._running[request_id] = (request, num_sent + 1)
        else:
            self._forget(request_id)
        return RequestOutput(request_id, [self._text[num_sent % len(self._text)]], finish_reason)

    def _forget(self, request_id: str) -> None:
        del self._running[request_id]
        self._parked.discard(request_id)
        self._overdue.discard(request_id)
        self._ungranted.discard(request_id)
        self._granted.pop(request_id, None)

    def stats(self) -> Stats:
        num_parked = len(self._parked | self._ungranted)
        return Stats(
            num_running=len(self._running) - num_parked,
            num_parked=num_parked,
            num_steps=self._num_steps,
            generation_tokens=self._generation_tokens,
        )


def build(tokens_per_s: float, config: EngineConfig, on_progress: OnProgress) -> Engine:
    """The tokenizer and the limits are the model's (``ModelLoadError``)."""
    on_progress(LoadProgress("Reading the tokenizer", 0.5))
    tokenizer = Tokenizer.load(config.model_dir)
    path = config.model_dir / "config.json"
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        # For multimodal models, the config of the text model.
        model = msgspec.convert(fields | (fields.get("text_config") or {}), _ModelConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"{path}: {error}") from error
    ready = Ready(
        model=config.model,
        max_model_len=config.max_model_len or model.max_position_embeddings,
        vocab_size=model.vocab_size,
        block_size=config.block_size,
        num_blocks=0,
        device="none",
        pid=os.getpid(),
    )
    text = tokenizer.encode(TEXT, add_special_tokens=False)
    notes = os.environ.get(ABORTS_ENV)
    on_abort = None if notes is None else partial(_note, notes)
    return Engine(ReplayCore(text, tokens_per_s, on_abort=on_abort), ready)


def _note(path: str, request_id: str) -> None:
    with open(path, "a") as file:
        file.write(f"{time.monotonic()} {request_id}\n")


if __name__ == "__main__":
    sys.exit(main(partial(build, float(sys.argv[1]))))
