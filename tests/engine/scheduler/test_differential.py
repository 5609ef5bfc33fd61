"""One workload through every combination of features: each output equals the request run alone."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from tests.engine.scheduler.harness import Harness

FEATURES = ("chunked", "crowded", "swap", "cached", "overlap", "drafts")


def submit(harness: Harness, rng: random.Random, request_id: str, prompts: list[list[int]]) -> None:
    """Prompts share prefixes; some requests branch off one prompt (n > 1)."""
    group = ""
    if prompts and rng.random() < 0.3:
        prompt = rng.choice(prompts)
        group = f"branches of {prompt}"
    else:
        prompt = [rng.randrange(4, 7) for _ in range(rng.randrange(1, 24))]
        prompts.append(prompt)
    harness.add(
        request_id,
        prompt,
        salt=rng.choice(["one", "two"]),
        fair_key=rng.choice("abc"),
        priority=rng.choice([0, 0, 1]),
        max_tokens=rng.randrange(1, 16),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=rng.choice([(), (9,)]),
        group=group,
        logprobs=rng.choice([None, None, 0, 5]),
        prompt_logprobs=rng.choice([None, None, None, 2]),
    )


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair_share"])
@pytest.mark.parametrize(
    "features",
    [
        dict(zip(FEATURES, switches, strict=True))
        for switches in product([False, True], repeat=len(FEATURES))
        if switches[1] or not switches[2]  # Where nobody is preempted nothing is swapped.
    ],
    ids=lambda features: "+".join(name for name, on in features.items() if on) or "plain",
)
def test_every_combination(policy: str, features: dict[str, bool]) -> None:
    crowded, cached = features["crowded"], features["cached"]
    options: dict[str, Any] = {
        "policy": policy,
        "enable_prefix_caching": cached,
        "async_scheduling": features["overlap"],
        "max_num_seqs": 6,
        "max_num_batched_tokens": 9 if features["chunked"] else 200,
        "num_blocks": 11 if crowded else 200,
        "num_swap_blocks": 20 if features["swap"] else 0,
    }
    draft_hits = 0.7 if features["drafts"] else None
    harness = Harness(vocab_size=20, max_model_len=50, draft_hits=draft_hits, **options)
    rng = random.Random(str(sorted(options.items())))
    prompts: list[list[int]] = []
    for i in range(36 if features["drafts"] else 24):  # Drafts make short work of a crowd.
        submit(harness, rng, str(i), prompts)
        harness.step(rng.randrange(3))
        if rng.random() < 0.15:
            harness.core.abort([str(rng.randrange(i + 1))])
    harness.run()
    harness.check_outputs()
    stats = harness.core.stats()
    assert (stats.swapped_out_blocks > 0) == (stats.swapped_in_blocks > 0) == features["swap"]
    assert (stats.num_preemptions > 0) or not crowded
    assert (stats.prefix_cache_hits > 0) == cached
    assert (stats.spec_decode_num_accepted_tokens > 0) == features["drafts"]
