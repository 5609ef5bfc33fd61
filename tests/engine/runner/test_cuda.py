"""The same plans on a GPU, through the ops and the attention that every device has."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
import torch

from engine.config import EngineConfig
from engine.messages import SamplingParams
from engine.runner import load_runner
from tests.engine.runner.conftest import BLOCK_SIZE, MAX_ROWS
from tests.engine.runner.harness import Generation, Harness
from tests.engine.runner.test_runner import MIXED, even_tokens, generations, prompt

pytestmark = pytest.mark.gpu
Greedy = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def cuda_config(tiny_config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(tiny_config, device="cuda", dtype="float32")


def run(config: EngineConfig, done: list[Generation], **how: object) -> list[list[int]]:
    h = Harness(load_runner(config), block_size=BLOCK_SIZE, max_rows=MAX_ROWS)
    h.run(done, **how)  # type: ignore[arg-type]
    return [generation.output for generation in done]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk_size", [5, 1000])
def test_greedy_equals_transformers_on_the_cpu(
    cuda_config: EngineConfig, greedy: Greedy, overlap: bool, chunk_size: int
) -> None:
    done = generations(*MIXED)
    outputs = run(cuda_config, done, overlap=overlap, chunk_size=chunk_size, max_running=6)
    assert outputs == [greedy(g.prompt, g.max_tokens) for g in done]


def test_preemption_and_prefix_hits_change_nothing(
    cuda_config: EngineConfig, greedy: Greedy
) -> None:
    base = prompt(99, 48)
    first = Generation("first", base, 40)
    hit = Generation("hit", base[:42] + prompt(1, 9), 20, shares=(first, 42))
    rng = random.Random(0)
    done = [first, hit, *generations((9, 30), (30, 30))]
    outputs = run(
        cuda_config,
        done,
        preempt=lambda _step, running: [
            g for g in running if g not in (first, hit) and g.row is not None and rng.random() < 0.1
        ],
    )
    assert outputs == [greedy(g.prompt, g.max_tokens) for g in done]


def test_sampling_and_masks_work_there_too(
    cuda_config: EngineConfig, tiny_config: EngineConfig
) -> None:
    def mixed() -> list[Generation]:
        params = [
            SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=3),
            SamplingParams(temperature=0.0, min_tokens=4, stop_token_ids=(7, 8)),
            SamplingParams(temperature=1.2, seed=9),
        ]
        return [
            Generation(str(i), prompt(i, 20), 30, p, mask=even_tokens if i == 2 else None)
            for i, p in enumerate(params)
        ]

    assert run(cuda_config, mixed(), overlap=False) == run(tiny_config, mixed())


def test_the_cache_takes_the_memory_that_is_left(cuda_config: EngineConfig) -> None:
    free, _ = torch.cuda.mem_get_info()
    config = msgspec.structs.replace(
        cuda_config, num_gpu_blocks_override=None, gpu_memory_utilization=0.3
    )
    runner = load_runner(config)
    torch.cuda.empty_cache()
    left, total = torch.cuda.mem_get_info()
    assert total - left <= 0.3 * total
    assert free - left > 0.2 * total
    done = Generation("a", prompt(0, 30), 5)
    Harness(runner, block_size=BLOCK_SIZE, max_rows=2).run([done])
    assert len(done.output) == 5
