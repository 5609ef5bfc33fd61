"""``python -m engine.bench.goodput``: how many requests a second get what they were promised.

Requests of a chat mix arrive as a Poisson process at several rates: prompts of 50 to 3,000 tokens,
answers of 20 to 600. A request is good if its first token comes within 500 ms and its gaps stay
within 60 ms (p99). Runs the real core and scheduler on a modelled H200 with a model of 8B
parameters, or with ``--model`` or ``--cases`` an engine process on the device at hand, in real
time. ``--crowd`` measures that many requests of 512 tokens that come at once, as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.bench.h200 import H200
from engine.bench.throughput import model_folder
from engine.client.client import EngineClient
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUM_BLOCKS = 40_000
_MAX_MODEL_LEN = 4096
_LIKE_H200 = {"max_num_seqs": 512, "max_num_batched_tokens": 8448}
"""What an engine sets by itself on that device."""
_NUM_TENANTS = 4
TTFT_S, GAP_S = 0.5, 0.06
"""What a good request keeps to."""


Arrival = tuple[float, GenerateRequest]
"""When a request comes, in seconds from the start."""


def _request(load: str, number: int, num_prompt_tokens: int, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=str(number),
        prompt_token_ids=[(number * 7919 + i) % 997 for i in range(num_prompt_tokens)],
        params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        cache_salt=f"{load} {number}",  # Nothing is cached.
        fair_key=str(number % _NUM_TENANTS),
    )


def trace(rate: float, seconds: float, seed: int = 1) -> list[Arrival]:
    """The requests of that many seconds."""
    rng = random.Random(seed)
    time_s, arrivals = rng.expovariate(rate), list[Arrival]()
    while time_s < seconds:
        num_prompt_tokens = min(3000, max(50, int(rng.lognormvariate(6.3, 1.0))))
        max_tokens = min(600, max(20, int(rng.lognormvariate(5.2, 0.7))))
        arrivals.append(
            (time_s, _request(f"{rate} {seed}", len(arrivals), num_prompt_tokens, max_tokens))
        )
        time_s += rng.expovariate(rate)
    return arrivals


def crowd(count: int) -> list[Arrival]:
    return [(0.0, _request("crowd", number, 512, 256)) for number in range(count)]


@dataclass(slots=True)
class Answer:
    arrived_s: float
    tokens_s: list[float] = field(default_factory=list)
    """When its tokens came."""

    @property
    def ttft_s(self) -> float:
        return self.tokens_s[0] - self.arrived_s

    @property
    def gap_s(self) -> float:
        """The p99."""
        gaps = sorted(b - a for a, b in pairwise(self.tokens_s))
        return gaps[int(0.99 * len(gaps))]

    @property
    def is_good(self) -> bool:
        return self.ttft_s <= TTFT_S and self.gap_s <= GAP_S


def on_modelled_device(arrivals: Sequence[Arrival], settings: dict[str, Any]) -> list[Answer]:
    """The answers, with modelled times."""
    device = H200(_NUM_BLOCKS)
    config = EngineConfig(model="modelled", async_scheduling=True, **{**_LIKE_H200, **settings})
    core = EngineCore(config, device, max_model_len=_MAX_MODEL_LEN, clock=lambda: device.now)
    coming = deque(arrivals)
    answers: dict[str, Answer] = {}
    while coming or core.has_unfinished:
        if not core.has_unfinished:
            device.now = max(device.now, coming[0][0])
        while coming and coming[0][0] <= device.now:
            arrived_s, request = coming.popleft()
            answers[request.request_id] = Answer(arrived_s)
            core.add_request(request)
        for output in core.step():
            assert output.error is None, output.error
            answers[output.request_id].tokens_s += [device.now] * len(output.new_token_ids)
    return list(answers.values())


async def on_engine(client: EngineClient, arrivals: Sequence[Arrival]) -> list[Answer]:
    """The answers of a running engine."""
    start_s = time.perf_counter()

    async def ask(arrived_s: float, request: GenerateRequest) -> Answer:
        await asyncio.sleep(start_s + arrived_s - time.perf_counter())
        answer = Answer(arrived_s)
        async for output in client.submit(request):
            now = time.perf_counter() - start_s
            answer.tokens_s += [now] * len(output.new_token_ids)
        return answer

    return await asyncio.gather(*(ask(*arrival) for arrival in arrivals))


def _row(name: str, settings: str, answers: Sequence[Answer]) -> str:
    ttfts_ms = sorted(1000 * answer.ttft_s for answer in answers)
    gaps_ms = sorted(1000 * answer.gap_s for answer in answers)
    middle, last = len(answers) // 2, int(0.99 * len(answers))
    num_tokens = sum(len(answer.tokens_s) for answer in answers)
    return (
        f"{name:>10}  {sum(answer.is_good for answer in answers) / len(answers):6.1%}"
        f"  {ttfts_ms[middle]:5.0f} / {ttfts_ms[last]:5.0f} ms"
        f"  {gaps_ms[middle]:4.0f} / {gaps_ms[last]:3.0f} ms"
        f"  {num_tokens / max(answer.tokens_s[-1] for answer in answers):8.0f}  {settings}"
    )


def _loads(options: argparse.Namespace) -> list[tuple[str, list[Arrival]]]:
    loads = [(f"{rate:g}/s", trace(rate, options.seconds)) for rate in options.rates]
    if options.crowd:
        loads.append((f"{options.crowd} at once", crowd(options.crowd)))
    return loads


async def _measure(options: argparse.Namespace, model: str, settings: dict[str, Any]) -> None:
    dummy = {} if options.cases is None else {"load_format": "dummy"}
    client = EngineClient(
        EngineConfig(model=model, skip_tokenizer_init=True, **{**dummy, **settings})
    )
    await client.start()
    try:
        await on_engine(client, trace(8, 3, seed=2))  # as a warm-up
        for name, arrivals in _loads(options):
            answers = await on_engine(client, arrivals)
            print(_row(name, json.dumps(settings), answers), flush=True)
    finally:
        await client.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m engine.bench.goodput",
        description="Measures how many requests a second get what they were promised.",
    )
    parser.add_argument("--model", help="a model folder, in place of the modelled device")
    parser.add_argument("--cases", type=Path, help="a JSON file with a shape of random weights")
    parser.add_argument("--rates", type=float, nargs="*", default=[16, 22, 28, 34, 40])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--crowd", type=int, default=0, help="requests that come at once")
    parser.add_argument(
        "--settings",
        type=json.loads,
        nargs="+",
        default=[
            {"policy": "fair_share", "target_gap_ms": gap_ms} for gap_ms in (25.0, 50.0, None)
        ],
        help="JSON: the engine's settings to compare",
    )
    options = parser.parse_args(argv)
    print("      load    good  first token p50/p99   gap p50/p99  tokens/s  settings")
    if options.model is None and options.cases is None:
        for name, arrivals in _loads(options):
            for settings in options.settings:
                answers = on_modelled_device(arrivals, settings)
                print(_row(name, json.dumps(settings), answers), flush=True)
        return
    shape = None if options.cases is None else json.loads(options.cases.read_bytes())["model"]
    with model_folder(options.model, shape) as model:
        for settings in options.settings:
            asyncio.run(_measure(options, model, settings))


if __name__ == "__main__":
    main()
