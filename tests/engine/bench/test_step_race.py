"""Engines whose steps take a set time, on a host that stalls."""

from __future__ import annotations

import random

import pytest

from engine.bench.overload import ModelledRunner
from engine.bench.step_race import Kind, Step, StepTimes, compare_steps
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams

PROMPT, LARGE, SMALL = Kind(True, 64), Kind(False, 64), Kind(False, 8)
ROUND = [PROMPT] * 2 + [LARGE] * 10 + [SMALL] * 20
USUAL_S = {PROMPT: 8e-3, LARGE: 7e-4, SMALL: 3e-4}
IN_ALL_S = sum(USUAL_S[kind] for kind in ROUND)


def rounds(number: int, seed: int = 0, **more: float) -> list[dict[str, list[Step]]]:
    """On a host that takes twice as long in a quarter of the rounds, and now and then for a single
    engine; ``more``: the seconds that each step of an engine takes beyond the usual."""
    rng = random.Random(seed)

    def steps(more_s: float, pace: float) -> list[Step]:
        pace *= rng.choice((1.0,) * 12 + (2.0,))
        return [Step(k, (USUAL_S[k] + more_s) * pace * rng.lognormvariate(0, 0.03)) for k in ROUND]

    paces = [rng.choice((1.0, 1.0, 1.0, 2.0)) for _ in range(number)]
    return [{name: steps(more_s, pace) for name, more_s in more.items()} for pace in paces]


@pytest.mark.parametrize("seed", range(5))
def test_a_per_cent_is_told_on_a_host_that_stalls(seed: int) -> None:
    more_s = 0.02 * IN_ALL_S / len(ROUND)
    found = compare_steps(
        rounds(60, seed, plain=0.0, control=0.0, slower=more_s), ["plain", "control"]
    )
    assert found["slower"].speed_up == pytest.approx(1 / 1.02, abs=0.006)
    assert found["control"].speed_up == pytest.approx(1.0, abs=0.006)
    low, high = found["slower"].interval
    assert low <= found["slower"].speed_up <= high < 1.0
    assert high - low < 0.02
    assert (found["plain"].speed_up, found["plain"].interval) == (1.0, (1.0, 1.0))


def test_kinds_count_by_how_often_they_are_and_how_long_they_take() -> None:
    some = rounds(1, plain=0.0, other=0.0)
    some[0]["plain"] = [Step(kind, USUAL_S[kind]) for kind in ROUND]
    some[0]["other"] = [Step(kind, USUAL_S[kind] + 1e-3 * (kind is PROMPT)) for kind in ROUND]
    found = compare_steps(some, ["plain"])["other"]
    assert found.speed_up == pytest.approx(IN_ALL_S / (IN_ALL_S + 2e-3))


def test_who_does_other_steps_cannot_be_compared_so() -> None:
    some = rounds(9, plain=0.0, drafting=0.0, seldom=0.0)
    for number, each in enumerate(some):
        del each["drafting"][-5:]
        del each["seldom"][number:1]  # One step less, in the first round.
    found = compare_steps(some, ["plain"])
    assert found.keys() == {"plain", "seldom"}
    assert found["seldom"].num_rounds == 8
    assert compare_steps([], ["plain"]) == {}


def test_steps_are_noted_by_what_they_compute() -> None:
    runner = ModelledRunner(64)
    core = EngineCore(EngineConfig(model="none", async_scheduling=True), runner, max_model_len=100)
    times = StepTimes(core, lambda: runner.now)
    for index in range(3):
        params = SamplingParams(max_tokens=3 + (index == 0), ignore_eos=True)
        core.add_request(
            GenerateRequest(request_id=str(index), prompt_token_ids=[1, 2], params=params)
        )
    while core.has_unfinished:
        core.step()
    steps = times.take()
    nothing = Kind(False, 0)
    assert [step.kind for step in steps] == [
        *(Kind(True, 4), Kind(False, 4), Kind(False, 4)),
        *(Kind(False, 1), nothing),
    ]
    assert steps[0].seconds > steps[1].seconds > steps[3].seconds > steps[4].seconds == 0.0
    assert times.take() == []
