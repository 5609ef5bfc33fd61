"""Layer groups on a GPU: its kernels, in graphs and without, while free blocks are NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache.groups import kinds_of
from engine.runner.memory import GPU_WINDOW_STEP
from tests.engine.models.families import FALLBACK_CASES
from tests.engine.models.test_hybrid import (
    DRAFTS,
    GROUPS,
    NETWORKS,
    Poisoned,
    Subject,
    cases,
    save_network,
)

pytestmark = pytest.mark.gpu

WINDOW, PROMPT_LEN = 40, 500
WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "head_dim": 64,
    "sliding_window": WINDOW,
    "max_position_embeddings": 1024,
}
ON_GPU: dict[str, Any] = {
    "device": "cuda",
    "block_size": 16,
    "num_gpu_blocks_override": 900,
    "max_num_batched_tokens": 256,
}


@pytest.fixture(scope="module", params=cases(), ids=lambda case: case.name)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp(request.param.name)
    return Subject(request.param, folder, PROMPT_LEN, **WIDE)


@pytest.mark.parametrize("chunk", [256, 7])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_logits(
    subject: Subject, backend: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**ON_GPU, "attention_backend": backend, "max_num_batched_tokens": chunk}
    engine = Poisoned(subject, monkeypatch, dtype="float32", enforce_eager=True, **options)
    wide = [None if window is None else WINDOW for window in GROUPS[subject.case.name]]
    assert engine.runner.layer_groups == kinds_of(wide, GPU_WINDOW_STEP)
    engine.add("a", subject.prompt)
    engine.run()
    assert (
        engine.num_left_behind == (PROMPT_LEN - WINDOW) // GPU_WINDOW_STEP * GPU_WINDOW_STEP // 16
    )
    ours = torch.cat(engine.seen).float().cpu()
    theirs = subject.logits(subject.prompt + engine.tokens["a"][:-1])[PROMPT_LEN - 1 :]
    assert (ours - theirs).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("options", "scarce"),
    [
        ({"dtype": "bfloat16"}, {}),
        ({"dtype": "bfloat16", "enforce_eager": True}, {}),
        ({"dtype": "bfloat16", "speculative_config": DRAFTS}, {}),
        # Who is preempted computes in other batches, which 16 bits would tell.
        (
            {"dtype": "float32"},
            {"swap_space": 0.5, "num_gpu_blocks_override": 330, "watermark": 0.0},
        ),
    ],
    ids=["graphs", "eager", "drafts", "swapped"],
)
def test_requests_generate_the_same_with_groups_and_without(
    subject: Subject,
    options: dict[str, Any],
    scarce: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same tiles of the same numbers, wherever they are: equal to the bit."""

    def outputs(**how: Any) -> dict[str, list[int]]:
        engine = Poisoned(subject, monkeypatch, **{**ON_GPU, **options, **how})
        prompts = {str(i): subject.prompt[i : 400 + 30 * i] for i in range(4)}
        for name, prompt in prompts.items():
            engine.add(name, prompt, max_tokens=60)
        engine.run()
        engine.add("again", [*prompts["2"], *engine.tokens["2"], 5], max_tokens=30)
        engine.run()
        return engine.tokens

    assert outputs(**scarce) == outputs(disable_hybrid_kv_cache_manager=True)


@pytest.mark.parametrize("method", NETWORKS)
def test_draft_networks(
    subject: Subject, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They draft in graphs, too, over the blocks of what sees everything."""
    if method == "eagle" and subject.case in FALLBACK_CASES:
        pytest.skip("EAGLE heads need a native model")
    if None not in GROUPS[subject.case.name]:
        pytest.skip("a draft network needs a layer that sees everything")
    speculative = save_network(method, subject, tmp_path / method)

    def outputs(**how: Any) -> dict[str, list[int]]:
        engine = Poisoned(subject, monkeypatch, dtype="bfloat16", **{**ON_GPU, **how})
        for i in range(4):
            engine.add(str(i), subject.prompt[i : 400 + 30 * i], max_tokens=40)
        engine.run()
        return engine.tokens

    drafted = outputs(speculative_config=speculative)
    single = outputs(speculative_config=speculative, disable_hybrid_kv_cache_manager=True)
    assert drafted == single
