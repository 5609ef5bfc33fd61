"""A random Llama with grouped-query attention, and what transformers makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.runner import TorchRunner, load_runner
from kernels import cpu, ops
from tests.engine.runner.tiny_llama import save_tiny_llama

MAX_ROWS = 32
BLOCK_SIZE = 4


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_config(tiny_dir: Path) -> EngineConfig:
    return EngineConfig(
        model=str(tiny_dir),
        device="cpu",
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_ROWS,
        num_gpu_blocks_override=400,
        num_threads=1,
    )


@pytest.fixture(params=["kernels", pytest.param("torch", marks=pytest.mark.nightly)])
def runner(
    request: pytest.FixtureRequest, tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TorchRunner]:
    """With our CPU kernels, and as it runs where they cannot be built."""
    monkeypatch.setattr(ops, "_registry", dict(ops._registry))
    ops.resolve.cache_clear()
    if request.param == "kernels" and not cpu.available():
        pytest.skip("no compiler for CPU kernels")
    if request.param == "torch":
        monkeypatch.setattr(cpu, "available", lambda: False)
        ops._registry.update({(op, "cpu"): ops._registry[op, "reference"] for op in ops.OPS})
    yield load_runner(tiny_config)
    ops.resolve.cache_clear()


@pytest.fixture(scope="session")
def greedy(tiny_dir: Path) -> Callable[[list[int], int], list[int]]:
    """Greedy decoding by transformers: each prompt alone, float32, remembered."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()
    known: dict[tuple[int, ...], list[int]] = {}

    def generate(prompt: list[int], max_tokens: int) -> list[int]:
        output = known.get(tuple(prompt), [])
        if len(output) < max_tokens:
            # Without a mask generate would take ids equal to pad_token_id for padding.
            ids = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )
            output = known[tuple(prompt)] = ids[0, len(prompt) :].tolist()
        return output[:max_tokens]

    return generate
