from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.config import EngineConfig
from engine.runner import TorchRunner, load_runner
from engine.runner.rows import Ints
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, StepPlan, TokenMask
from kernels import cpu
from tests.engine.runner.conftest import BLOCK_SIZE, MAX_ROWS
from tests.engine.runner.harness import Generation, Harness
from tests.engine.runner.tiny_llama import VOCAB_SIZE
from tests.pairs import each_value

Greedy = Callable[[list[int], int], list[int]]
DEMO_MODEL = Path(__file__).parents[3] / "engine" / "demo" / "model"


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


def generations(*shapes: tuple[int, int]) -> list[Generation]:
    return [
        Generation(f"request-{i}", prompt(i, length), max_tokens)
        for i, (length, max_tokens) in enumerate(shapes)
    ]


MIXED = ((1, 20), (3, 30), (4, 9), (5, 25), (17, 1), (33, 12), (60, 40), (90, 22), (8, 33))


def harness(runner: TorchRunner, seed: int = 0) -> Harness:
    return Harness(runner, block_size=BLOCK_SIZE, max_rows=MAX_ROWS, seed=seed)


def assert_greedy(done: list[Generation], greedy: Greedy) -> None:
    for generation in done:
        assert generation.output == greedy(generation.prompt, generation.max_tokens)


@pytest.mark.parametrize(
    ("shape", "runner"),
    each_value([(1, 20), (16, 20), (100, 40)], ["kernels", "torch"]),
    indirect=["runner"],
)
def test_one_request_equals_transformers(
    runner: TorchRunner, greedy: Greedy, shape: tuple[int, int]
) -> None:
    done = generations(shape)
    harness(runner).run(done)
    assert_greedy(done, greedy)


@pytest.mark.parametrize("chunk_size", [1, 3, 4, 7, 64])
def test_chunked_prefill_equals_transformers(
    runner: TorchRunner, greedy: Greedy, chunk_size: int
) -> None:
    done = generations(*MIXED)
    harness(runner).run(done, chunk_size=chunk_size)
    assert_greedy(done, greedy)


@pytest.mark.parametrize(
    ("token_budget", "overlap", "runner"),
    each_value([9, 20, 1000], [False, True], ["kernels", "torch"]),
    indirect=["runner"],
)
def test_mixed_batches_equal_transformers(
    runner: TorchRunner, greedy: Greedy, token_budget: int, overlap: bool
) -> None:
    done = generations(*MIXED)
    harness(runner).run(done, token_budget=token_budget, max_running=5, overlap=overlap)
    assert_greedy(done, greedy)


@pytest.mark.parametrize("seed", each_value(range(4), most=2))
def test_preempted_requests_equal_transformers(
    runner: TorchRunner, greedy: Greedy, seed: int
) -> None:
    rng = random.Random(seed)
    preempted = []

    def preempt(step: int, running: list[Generation]) -> list[Generation]:
        victims = [g for g in running if g.row is not None and rng.random() < 0.05]
        preempted.extend(victims)
        return victims

    done = generations(*MIXED)
    harness(runner, seed).run(done, chunk_size=11, max_running=6, preempt=preempt)
    assert len(preempted) > 3
    assert any(g.output for g in preempted)
    assert_greedy(done, greedy)


@pytest.mark.parametrize("shared", [4, 8, 10, 40, 47])
def test_prefix_hits_equal_transformers(runner: TorchRunner, greedy: Greedy, shared: int) -> None:
    base = prompt(99, 48)
    first = Generation("first", base, 40)
    hits = [
        Generation(f"hit-{i}", base[:shared] + prompt(i, 1 + 5 * i), 20, shares=(first, shared))
        for i in range(3)
    ]
    same = Generation("same", base, 20, shares=(first, min(shared, 47)))
    harness(runner).run([first, *hits, same])
    assert_greedy([first, *hits, same], greedy)


@pytest.mark.skipif(
    not (DEMO_MODEL / "model.safetensors").exists(), reason="the demo model is not there"
)
def test_demo_model_equals_transformers() -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    runner = load_runner(EngineConfig(model=str(DEMO_MODEL), device="cpu", max_num_seqs=8))
    rng = random.Random(5)
    done = [
        Generation(str(i), [rng.randrange(runner.vocab_size) for _ in range(n)], 48)
        for i, n in enumerate((1, 9, 16, 40, 130))
    ]
    Harness(runner, block_size=16, max_rows=8).run(done, chunk_size=32)
    for generation in done:
        ids = torch.tensor([generation.prompt + generation.output])
        with torch.inference_mode():
            likeliest = reference(ids, use_cache=False).logits[0].argmax(1)
        assert generation.output == likeliest[len(generation.prompt) - 1 : -1].tolist()


SEEDED = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=2**64 - 3)


def sampled(runner: TorchRunner, **how: object) -> list[list[int]]:
    params = [
        SEEDED,
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.3, top_p=0.5, seed=7),
        SamplingParams(temperature=0.7),
    ]
    done = [
        Generation(f"request-{i}", prompt(i, 7 * i + 2), 25, params[i]) for i in range(len(params))
    ]
    harness(runner).run(done, **how)  # type: ignore[arg-type]
    return [g.output for g in done]


def test_sampling_does_not_depend_on_the_batch(tiny_config: EngineConfig) -> None:
    together = sampled(load_runner(tiny_config))
    assert sampled(load_runner(tiny_config), max_running=1) == together
    assert sampled(load_runner(tiny_config), chunk_size=3, max_running=3) == together
    assert sampled(load_runner(tiny_config), overlap=True, token_budget=10) == together
    rng = random.Random(3)
    preempted = sampled(
        load_runner(tiny_config),
        preempt=lambda _step, running: [
            g for g in running if g.row is not None and rng.random() < 0.1
        ],
    )
    assert preempted == together
    assert len({tuple(output) for output in together}) == len(together)


def even_tokens(output: list[int]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.arange(VOCAB_SIZE) % 2 == 0)


def test_masks_apply_to_their_own_rows_only(runner: TorchRunner, greedy: Greedy) -> None:
    free = generations((5, 30), (20, 30))
    masked = [Generation("masked", prompt(0, 5), 30, mask=even_tokens)]
    harness(runner).run([free[0], *masked, free[1]], chunk_size=6)
    assert_greedy(free, greedy)
    assert all(token % 2 == 0 for token in masked[0].output)
    assert len(set(masked[0].output)) > 1


def test_a_mask_that_allows_one_token_forces_it(runner: TorchRunner) -> None:
    def only_next(output: list[int]) -> npt.NDArray[np.bool_]:
        forced = (len(output) * 37 + VOCAB_SIZE - 1) % VOCAB_SIZE
        return np.asarray(np.arange(VOCAB_SIZE) == forced)

    done = Generation("forced", prompt(0, 5), 12, SEEDED, mask=only_next)
    harness(runner).run([done])
    assert done.output == [(i * 37 + VOCAB_SIZE - 1) % VOCAB_SIZE for i in range(12)]


def test_min_tokens_holds_stop_tokens_back(runner: TorchRunner, greedy: Greedy) -> None:
    free = greedy(prompt(0, 9), 12)
    stop = free[3]
    params = SamplingParams(temperature=0.0, min_tokens=8, max_tokens=20, stop_token_ids=(stop,))
    done = Generation("held", prompt(0, 9), 20, params)
    harness(runner).run([done])
    assert done.output[:3] == free[:3]
    assert stop not in done.output[:8]


def chunk(row: int, computed: int, n: int, samples: bool) -> Chunk:
    return Chunk(
        row=row,
        request_id=f"request-{row}",
        num_computed_tokens=computed,
        num_scheduled_tokens=n,
        samples=samples,
    )


def admission(row: int, tokens: list[int], blocks: list[int]) -> Admission:
    return Admission(
        row=row,
        request_id=f"request-{row}",
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        block_ids=[blocks],
        params=SamplingParams(temperature=0.0),
    )


def test_a_step_that_samples_nothing_returns_empty_lists(runner: TorchRunner) -> None:
    plan = StepPlan(
        7, admissions=[admission(3, prompt(0, 8), [5, 2])], chunks=[chunk(3, 0, 4, False)]
    )
    runner.forward(plan)
    result = runner.sample(None).collect()
    assert (result.step_id, result.token_ids) == (7, [[]])


def test_results_come_in_the_order_of_the_chunks(runner: TorchRunner, greedy: Greedy) -> None:
    plan = StepPlan(
        0,
        admissions=[admission(i, prompt(i, 6), [2 * i, 2 * i + 1]) for i in range(3)],
        chunks=[chunk(2, 0, 6, True), chunk(0, 0, 5, False), chunk(1, 0, 6, True)],
    )
    runner.forward(plan)
    launched = runner.sample(None)
    expected = [greedy(prompt(2, 6), 1), [], greedy(prompt(1, 6), 1)]
    assert launched.collect().token_ids == expected


def test_two_steps_may_be_in_flight_and_no_more(runner: TorchRunner, greedy: Greedy) -> None:
    plan = StepPlan(
        0, admissions=[admission(0, prompt(0, 6), [0, 1, 2])], chunks=[chunk(0, 0, 6, True)]
    )
    launched = []
    for step in range(2):
        runner.forward(plan)
        with pytest.raises(AssertionError, match="before the last step was sampled"):
            runner.forward(plan)
        launched.append(runner.sample(None))
        plan = StepPlan(step + 1, chunks=[chunk(0, 6 + step, 1, True)])
    with pytest.raises(AssertionError, match="too many not collected"):
        runner.forward(plan)
    collected = [step.collect().token_ids[0] for step in launched]
    assert collected == [[token] for token in greedy(prompt(0, 6), 2)]


def test_a_mask_for_a_chunk_that_does_not_sample_is_refused(runner: TorchRunner) -> None:
    plan = StepPlan(
        0,
        admissions=[admission(0, prompt(0, 6), [0, 1]), admission(1, prompt(1, 6), [2, 3])],
        chunks=[chunk(0, 0, 3, False), chunk(1, 0, 6, True)],
    )
    runner.forward(plan)
    with pytest.raises(AssertionError, match="masked but not sampled"):
        runner.sample(TokenMask([0], np.zeros((1, -(-VOCAB_SIZE // 32)), np.int32)))


def test_a_row_forgets_its_last_request(runner: TorchRunner, greedy: Greedy) -> None:
    h = harness(runner)
    h.free_rows = [0]
    first, second = generations((30, 5), (6, 20))
    first.params = SamplingParams(temperature=1.0, seed=1, min_tokens=5, max_tokens=5)
    h.run([first, second], max_running=1)
    assert_greedy([second], greedy)


def test_decoding_gives_the_same_logits_bit_for_bit_in_any_batch(
    tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no near tie can fall differently. (Long prompt chunks are torch's and only nearly so.)"""
    if not cpu.available():
        pytest.skip("no compiler for CPU kernels")

    def logits(others: int) -> list[bytes]:
        runner = load_runner(tiny_config)
        seen: dict[int, list[bytes]] = {}
        draw = runner._sampler.sample_into

        def spy(tokens: torch.Tensor, scores: torch.Tensor, rows: Ints, *rest: Any) -> torch.Tensor:
            for row, values in zip(rows.tolist(), scores, strict=True):
                seen.setdefault(row, []).append(values.numpy().tobytes())
            return draw(tokens, scores, rows, *rest)

        monkeypatch.setattr(runner._sampler, "sample_into", spy)
        h = harness(runner)
        row = h.free_rows[-1]
        h.run(generations((40, 30), *[(7 + i, 30) for i in range(others)]), chunk_size=5)
        return seen[row]

    alone = logits(0)
    assert len(alone) == 30
    assert logits(5) == alone
    assert logits(20) == alone
