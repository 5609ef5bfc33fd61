"""``python -m engine.bench.fairness``: what a flood of one tenant, or of fifty, costs another.

Runs the real core, scheduler and cache on a device with the modelled times of an H200 and 8B
parameters. One tenant asks for 40 tokens each 0.4 s or less often, while others keep the batch or
the cache full. The goal is a time to the first token whose 99th percentile is at most four times
that beside one single stream of the same kind.
"""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from engine.bench.h200 import H200
from engine.config import EngineConfig, Policy
from engine.core import EngineCore
from engine.messages import IDLE_PRIORITY, GenerateRequest
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUM_BLOCKS = 256
_MAX_MODEL_LEN = 2048
_MAX_TOKENS = 1500
_PROBE = "probe"
_LINE_TOKENS = 200, 100
_POLICIES: tuple[Policy, ...] = ("fcfs", "fair_share")


class Flood(NamedTuple):
    """What the other tenants ask for; each request is followed by another when it ends."""

    name: str
    num_streams: int = 150
    num_tenants: int = 1
    num_prompt_tokens: int = 32
    max_tokens: int = _MAX_TOKENS
    priority: int = 0
    num_choices: int = 1
    shared: bool = False
    """Whether all prompts of a tenant are the same."""
    own_tokens: int = 0
    """Of a stream that the probe has beside its short requests, one after the other."""
    every_s: float = 0.4
    """From one short request to the next: no more than the probe's share."""
    num_lines: int = 0
    """Lines of batches that wait besides: of four tenants, for 100 tokens after 200."""

    @property
    def single(self) -> Flood:
        """One stream of the same kind."""
        return self._replace(num_streams=1, num_tenants=1, num_choices=1)


FLOODS = (
    Flood("150 streams"),
    Flood("150 streams, 8 choices each", num_choices=8),
    Flood("150 streams of one prompt", num_prompt_tokens=400, shared=True),
    Flood("150 less important streams", priority=3),
    Flood("150 long prompts", num_prompt_tokens=1500, max_tokens=8),
    Flood("150 tiny requests", num_prompt_tokens=4, max_tokens=1),
    Flood("150 streams, and its own of 700", own_tokens=700),
    Flood("50 tenants, 3 streams each", num_tenants=50, every_s=2.0),
)

LIVE = Flood("8 streams, without batches", num_streams=8, num_tenants=4, max_tokens=300)
"""What a batch must hardly be felt beside: the time to the first token, by 5 %."""
BESIDE_BATCHES = LIVE._replace(name="8 streams, 10,000 lines wait", num_lines=10_000)


@dataclass(frozen=True, slots=True)
class Report:
    """Of one flood under one policy. Times are modelled."""

    num_asked: int
    ttfts_s: Sequence[float]
    """Of those that got a token, ascending."""
    tokens_per_s: float
    """Generated for all tenants."""
    line_tokens_per_s: float = 0.0
    """Of these, for lines of batches."""

    def ttft_s(self, share: float) -> float:
        return self.ttfts_s[int(share * (len(self.ttfts_s) - 1))] if self.ttfts_s else float("inf")


class Engine:
    """A core under a flood, with a clock that advances by modelled times."""

    def __init__(self, policy: Policy, flood: Flood) -> None:
        self.runner = H200(_NUM_BLOCKS)
        config = EngineConfig(
            model="modelled",
            max_num_seqs=64,
            max_num_batched_tokens=8192,
            target_gap_ms=50.0,
            policy=policy,
            async_scheduling=True,
        )
        self.core = EngineCore(
            config, self.runner, max_model_len=_MAX_MODEL_LEN, clock=lambda: self.runner.now
        )
        self._flood = flood
        self._num_sent = 0
        self._floods: dict[str, int] = {}
        """The tenant of each request of the flood, by id."""
        self.asked_s: dict[str, float] = {}
        self.first_s: dict[str, float] = {}
        self.num_tokens = 0
        for index in range(flood.num_streams):
            self._send_flood(index % flood.num_tenants)
        self.num_line_tokens = 0
        """Of ``num_tokens``, those of lines."""
        self._lines = {self._send_line(number) for number in range(flood.num_lines)}
        self._own = ""
        """The id of the probe's own stream."""
        self._send_own()

    def _send_flood(self, tenant: int) -> None:
        flood, number = self._flood, self._num_sent
        start = 0 if flood.shared else number // flood.num_choices
        name = self._send(
            f"flood {tenant}",
            [(start * 31 + i * i) % 997 for i in range(flood.num_prompt_tokens)],
            flood.max_tokens,
            flood.priority,
            "" if flood.num_choices == 1 else f"{tenant} {start}",
        )
        self._floods[name] = tenant

    def _send_line(self, number: int) -> str:
        num_prompt_tokens, max_tokens = _LINE_TOKENS
        prompt = [(number * 41 + i * i) % 997 for i in range(num_prompt_tokens)]
        return self._send(f"batch {number % 4}", prompt, max_tokens, IDLE_PRIORITY, "")

    def _send_own(self) -> None:
        if self._flood.own_tokens:
            self._own = self._send_probe(self._flood.own_tokens)

    def _send_probe(self, max_tokens: int) -> str:
        prompt = [(self._num_sent * 37 + i) % 997 for i in range(16)]
        return self._send(_PROBE, prompt, max_tokens, 0, "")

    def ask(self, at_s: float) -> None:
        """Send a short request that came at ``at_s``: during the step that was under way."""
        self.asked_s[self._send_probe(40)] = at_s

    def _send(
        self, tenant: str, prompt: list[int], max_tokens: int, priority: int, group: str
    ) -> str:
        name = str(self._num_sent)
        self._num_sent += 1
        self.core.add_request(
            GenerateRequest(
                request_id=name,
                prompt_token_ids=prompt,
                params=SamplingParams(max_tokens=max_tokens),
                cache_salt=tenant,
                fair_key=tenant,
                priority=priority,
                group=group,
            )
        )
        return name

    def step(self) -> None:
        for output in self.core.step():
            assert output.error is None, output.error
            self.num_tokens += len(output.new_token_ids)
            name = output.request_id
            if name in self._lines:
                self.num_line_tokens += len(output.new_token_ids)
            if name in self.asked_s and output.new_token_ids:
                self.first_s.setdefault(name, self.runner.now)
            if output.finish_reason is not None and name in self._floods:
                self._send_flood(self._floods.pop(name))
            if output.finish_reason is not None and name == self._own:
                self._send_own()


def run(policy: Policy, flood: Flood, *, seconds: int = 25) -> Report:
    engine = Engine(policy, flood)
    num_asked = int((seconds - 1) / flood.every_s)
    times = deque(1.0 + flood.every_s * number for number in range(num_asked))
    while engine.runner.now < seconds:
        while times and times[0] <= engine.runner.now:
            engine.ask(times.popleft())
        engine.step()
    ttfts = sorted(first - engine.asked_s[name] for name, first in engine.first_s.items())
    now = engine.runner.now
    return Report(len(engine.asked_s), ttfts, engine.num_tokens / now, engine.num_line_tokens / now)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m engine.bench.fairness",
        description="Floods a modelled device, beside a tenant that asks for little.",
    )
    parser.add_argument("--seconds", type=int, default=25, help="modelled seconds of each case")
    options = parser.parse_args(argv)
    print(f"Requests for 40 tokens beside a flood, for {options.seconds} modelled seconds each")
    print(f"{'flood':<31}  {'policy':<10}   served  p50 ms  p99 ms  of one stream  all tokens/s")
    for flood, policy in (*product(FLOODS, _POLICIES), (BESIDE_BATCHES, "fair_share")):
        report = run(policy, flood, seconds=options.seconds)
        times = "  ".join(f"{1000 * report.ttft_s(share):6.0f}" for share in (0.5, 0.99))
        calm = LIVE if flood is BESIDE_BATCHES else flood.single
        calm_ms = 1000 * run(policy, calm, seconds=options.seconds).ttft_s(0.99)
        print(
            f"{flood.name:<31}  {policy:<10}  {len(report.ttfts_s):3} of {report.num_asked:<3}"
            f"  {times}  {calm_ms:13.0f}  {report.tokens_per_s:12.0f}"
        )


if __name__ == "__main__":
    main()
