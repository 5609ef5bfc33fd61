"""What a tenant can learn about another from real time: nothing."""

from __future__ import annotations

import random
import time

import msgspec
import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.runner import load_runner
from engine.sampling_params import SamplingParams
from tests.engine.scheduler.test_isolation import auc

pytestmark = pytest.mark.slow

PROMPT_TOKENS = 140
PARAMS = SamplingParams(temperature=0.0, max_tokens=1)


class Timed:
    """A small real model, and how long its prompts take."""

    def __init__(self, config: EngineConfig) -> None:
        runner = load_runner(config)
        self.core = EngineCore(config, runner, max_model_len=runner.max_model_len)
        self._count = 0

    def seconds(self, prompt: list[int], salt: str) -> float:
        self._count += 1
        started = time.perf_counter()
        self.core.add_request(
            GenerateRequest(
                request_id=str(self._count),
                prompt_token_ids=prompt,
                params=PARAMS,
                cache_salt=salt,
                fair_key=salt,
            )
        )
        while self.core.has_unfinished:
            self.core.step()
        return time.perf_counter() - started


def probe(config: EngineConfig, victim: str, attacker: str, count: int) -> float:
    """AUC of telling right guesses of a victim's prompt from wrong ones by their time."""
    rng, timed = random.Random(5), Timed(config)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        # The same work for both, so that nothing but the cache could tell them apart.
        secret, other = ([rng.randrange(200) for _ in range(PROMPT_TOKENS)] for _ in range(2))
        is_right = rng.random() < 0.5
        guess = list(secret) if is_right else list(other)
        timed.seconds(secret, victim)
        times[is_right].append(timed.seconds(guess, attacker))
    return auc(times[False], times[True])


@pytest.fixture
def config(tiny_config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(tiny_config, policy="fair_share", max_num_batched_tokens=512)


@pytest.mark.parametrize(
    ("count", "most"), [(200, 0.16), pytest.param(1500, 0.08, marks=pytest.mark.nightly)]
)
def test_across_salts_real_time_carries_no_signal(
    config: EngineConfig, count: int, most: float
) -> None:
    """Chance says 0.5 ± 0.04 for the fewer."""
    assert abs(probe(config, "victim", "attacker", count) - 0.5) <= most


def test_inside_one_salt_it_would(config: EngineConfig) -> None:
    """Chance says 0.5 ± 0.04; a machine with other work to do blurs what an idle one shows."""
    assert probe(config, "shared", "shared", 200) > 0.7
