"""``python -m engine.bench.speculation_host``: what speculation costs the host, step by step.

The real core, scheduler and speculator, over a device that takes no time but on their clock:
microseconds of CPU time that a step takes beyond one of an engine without speculation (``plain``).
``control`` is a second one of these: what differs by less is noise. ``off``: a draft network whose
drafts do not pay; ``fixed``: three drafts in every step; ``adaptive``: the same, as long as they
pay, which they do; ``learning``: what the latter takes beyond ``fixed``.

One JSON line for each number of requests at once. Engines take turns in short rounds of the same
answers; a figure is the median of the rounds' differences, and where that lies with a confidence of
95 %.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Sequence

from engine.bench.overload import ModelledRunner
from engine.bench.race import median_interval
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import UNSEEN, StepPlan, StepResult
from engine.spec.config import SpeculativeConfig
from engine.spec.costs import StepCosts
from engine.spec.network import NetworkProposer

NUM_DRAFTS, RIGHT = 3, 0.87
"""Drafts of a request, and how often one is right if those before it are: the demo model's head."""
MEAN_TOKENS, MAX_TOKENS = 24, 128
"""Of an answer."""
_MAX_BATCH = 256
_NUM_WARM_UP = 6


class InstantRunner(ModelledRunner):
    """Takes no time for steps nor for drafts; ``now`` moves by what they are said to take."""

    step_costs: StepCosts | None  # type: ignore[assignment]

    def __init__(self, costs: StepCosts, right: float, *, adaptive: bool) -> None:
        """costs: of its steps; right: the chance of a draft; adaptive: whether the costs are
        known, as after a start-up that measured them."""
        super().__init__(8192)
        self.step_costs = costs if adaptive else None
        self._costs = costs
        self._right = right
        self._rng = random.Random(0)

    def forward(self, plan: StepPlan) -> None:
        longest = max(chunk.num_draft_tokens for chunk in plan.chunks)
        self.now += self._costs.taken_s[longest][0]
        tokens = [
            [1] * self._num_sampled(chunk.num_draft_tokens) if chunk.samples else []
            for chunk in plan.chunks
        ]
        self._results.append(StepResult(plan.step_id, tokens))

    def _num_sampled(self, num_drafts: int) -> int:
        count = 1
        while count <= num_drafts and self._rng.random() < self._right:
            count += 1
        return count

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        return [[UNSEEN] * num_tokens] * len(asked)


def _costs(draft_s: float) -> StepCosts:
    """A step of any batch takes 0.2 ms, and each draft so much more."""
    lengths = range(NUM_DRAFTS + 1)
    return StepCosts(
        (1, _MAX_BATCH), lengths, [[0.0002 + n * draft_s] * 2 for n in lengths], is_padded=True
    )


class Engine:
    """Answers what comes in turns."""

    def __init__(
        self, *, num_drafts: int, right: float = 0.0, draft_s: float = 1e-5, adaptive: bool = False
    ) -> None:
        """num_drafts: 0 for an engine without speculation."""
        runner = InstantRunner(_costs(draft_s), right, adaptive=adaptive)
        runner.num_lookahead_tokens = num_drafts
        speculative = SpeculativeConfig(method="ngram", num_speculative_tokens=max(1, num_drafts))
        self._core = EngineCore(
            EngineConfig(
                model="none",
                max_num_seqs=_MAX_BATCH,
                async_scheduling=True,
                speculative_config=speculative if num_drafts else None,
            ),
            runner,
            max_model_len=1024,
            proposer=NetworkProposer(runner) if num_drafts else None,
            clock=lambda: runner.now,
        )
        self._num_come = 0

    def us_a_step(self, answers: Sequence[tuple[int, list[int]]], batch: int) -> float:
        """Give answers of so many tokens to these prompts, ``batch`` at a time."""
        core, num_steps, began = self._core, 0, time.thread_time()
        for first in range(0, len(answers), batch):
            for num_tokens, prompt in answers[first : first + batch]:
                self._num_come += 1
                params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
                core.add_request(
                    GenerateRequest(
                        request_id=str(self._num_come), prompt_token_ids=prompt, params=params
                    )
                )
            while core.has_unfinished:
                core.step()
                num_steps += 1
        return 1e6 * (time.thread_time() - began) / num_steps

    @property
    def mean_drafts(self) -> float:
        """Times that a request drafted, for each step so far."""
        stats = self._core.stats()
        return stats.spec_decode_num_drafts / stats.num_steps


def _engines() -> dict[str, Engine]:
    return {
        "plain": Engine(num_drafts=0),
        "control": Engine(num_drafts=0),
        "off": Engine(num_drafts=NUM_DRAFTS, draft_s=0.01, adaptive=True),
        "fixed": Engine(num_drafts=NUM_DRAFTS, right=RIGHT),
        "adaptive": Engine(num_drafts=NUM_DRAFTS, right=RIGHT, adaptive=True),
    }


def _answers(number: int, batch: int) -> list[tuple[int, list[int]]]:
    """Lengths and prompts of a round."""
    rng = random.Random(number)
    return [
        (
            min(MAX_TOKENS, max(2, int(rng.expovariate(1 / MEAN_TOKENS)))),
            [rng.randrange(1000) for _ in range(rng.randrange(12, 40))],
        )
        for _ in range(max(16, batch))
    ]


def measure(batch: int, max_s: float) -> dict[str, object]:
    """Microseconds a step by engine: of ``plain`` in all, of the others beyond that."""
    engines = _engines()
    taken: dict[str, list[float]] = {name: [] for name in engines}
    gc.collect()
    number, end = -_NUM_WARM_UP, time.perf_counter() + max_s
    while number < 1 or time.perf_counter() < end:
        for name in list(engines) if number % 2 else reversed(engines):
            found = engines[name].us_a_step(_answers(number, batch), batch)
            if number >= 0:
                taken[name].append(found)
        number += 1
    line: dict[str, object] = {
        "batch": batch,
        "num_rounds": number,
        "plain": round(statistics.median(taken["plain"]), 2),
    }
    for name in ("control", "off", "fixed", "adaptive"):
        line[name] = _more(taken[name], taken["plain"])
    line["learning"] = _more(taken["adaptive"], taken["fixed"])
    line["drafts_a_step"] = {name: round(each.mean_drafts, 2) for name, each in engines.items()}
    return line


def _more(found: Sequence[float], usual: Sequence[float]) -> list[float]:
    """The median of the rounds' differences, and where it lies."""
    more = sorted(us - without for us, without in zip(found, usual, strict=True))
    return [round(us, 2) for us in (statistics.median(more), *median_interval(more))]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m engine.bench.speculation_host", description=__doc__
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--max-seconds", type=float, default=20.0, help="of each line")
    options = parser.parse_args(argv)
    for batch in options.batches:
        if not 1 <= batch <= _MAX_BATCH:
            parser.error(f"--batches must be in [1, {_MAX_BATCH}], got {batch}")
    for batch in options.batches:
        print(json.dumps(measure(batch, options.max_seconds)), flush=True)


if __name__ == "__main__":
    main()
