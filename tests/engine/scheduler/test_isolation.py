"""What a tenant can learn about another from the time its own requests take: nothing."""

from __future__ import annotations

import random
from itertools import product

from engine.bench.overload import ModelledRunner
from engine.core import EngineCore
from engine.messages import GenerateRequest, Image
from engine.sampling_params import SamplingParams
from engine.vision import Vision
from tests.engine.scheduler.harness import config


def auc(positives: list[float], negatives: list[float]) -> float:
    """How often a positive ranks above a negative: 0.5 when they cannot be told apart."""
    wins = sum((p > n) + 0.5 * (p == n) for p, n in product(positives, negatives))
    return wins / (len(positives) * len(negatives))


def probe_times(victim_salt: str, attacker_salt: str) -> tuple[list[float], list[float]]:
    """TTFT of an attacker's guesses: of prompts that a victim sent just before, and of others."""
    rng = random.Random(7)
    runner = ModelledRunner(num_blocks=2048)
    core = EngineCore(
        config(max_num_batched_tokens=512, policy="fair_share"),
        runner,
        max_model_len=512,
        clock=lambda: runner.now,
    )

    def send(request_id: str, prompt: list[int], salt: str) -> None:
        core.add_request(
            GenerateRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                params=SamplingParams(max_tokens=3),
                cache_salt=salt,
                fair_key=salt,
            )
        )

    times: tuple[list[float], list[float]] = ([], [])
    for i in range(120):
        secret = [rng.randrange(1000) for _ in range(rng.randrange(40, 200))]
        guess_is_right = rng.random() < 0.5
        guess = secret if guess_is_right else [rng.randrange(1000) for _ in secret]
        send(f"victim {i}", secret, victim_salt)
        for _ in range(rng.randrange(4)):
            send(f"noise {i} {rng.random()}", [rng.randrange(1000)] * rng.randrange(1, 60), "noise")
        while core.has_unfinished:
            core.step()
        started = runner.now
        send(f"probe {i}", guess, attacker_salt)
        while not any(o.request_id == f"probe {i}" for o in core.step()):
            pass
        # Per prompt token, as an attacker who knows the length would.
        times[guess_is_right].append((runner.now - started) / len(guess))
        while core.has_unfinished:
            core.step()
    return times


def picture_times(victim_salt: str, attacker_salt: str) -> tuple[list[float], list[float]]:
    """The same of pictures, in prompts that have nothing else in common."""
    rng = random.Random(7)
    vision = Vision(image_token_id=999, side=1, num_blocks=64)
    runner = ModelledRunner(num_blocks=2048, vision=vision)
    core = EngineCore(
        config(max_num_batched_tokens=512, policy="fair_share"),
        runner,
        max_model_len=512,
        clock=lambda: runner.now,
    )

    def send(request_id: str, seed: int, salt: str) -> float:
        """Seconds until the first token."""
        pixels = random.Random(seed).randbytes(3 * 100)
        image = Image(
            offset=20, num_tokens=100, height=10, width=10, digest=pixels[:32], pixels=pixels
        )
        core.add_request(
            GenerateRequest(
                request_id=request_id,
                prompt_token_ids=[*(rng.randrange(999) for _ in range(20)), *[999] * 100, 5],
                params=SamplingParams(max_tokens=1),
                cache_salt=salt,
                fair_key=salt,
                images=[image],
            )
        )
        started = runner.now
        while core.has_unfinished:
            core.step()
        return runner.now - started

    times: tuple[list[float], list[float]] = ([], [])
    for i in range(60):
        secret, guess_is_right = 2 * i, rng.random() < 0.5
        send(f"victim {i}", secret, victim_salt)
        guess = secret if guess_is_right else secret + 1
        times[guess_is_right].append(send(f"probe {i}", guess, attacker_salt))
    return times


def test_across_salts_no_picture_is_known_by_time() -> None:
    wrong, right = picture_times("victim", "attacker")
    assert abs(auc(wrong, right) - 0.5) <= 0.05


def test_inside_one_salt_it_would_be() -> None:
    wrong, right = picture_times("shared", "shared")
    assert auc(wrong, right) > 0.95


def test_across_salts_time_carries_no_signal() -> None:
    wrong, right = probe_times("victim", "attacker")
    assert abs(auc(wrong, right) - 0.5) <= 0.05


def test_inside_one_salt_it_would() -> None:
    wrong, right = probe_times("shared", "shared")
    assert auc(wrong, right) > 0.95
