from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.bench.shapes import SHAPES
from engine.bench.weight_traffic import step_bytes
from engine.models.registry import read_config


def gigabytes(shape: str, batch: int, folder: Path) -> float:
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    return step_bytes(read_config(folder), batch) / 1e9


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # Parameters as published, less the embedding where it is not the head, two bytes each.
        ("Llama-3-8B", 2 * (8.03 - 128256 * 4096 / 1e9)),
        ("Gemma-3-12B", 2 * 11.77),
        ("Mixtral-8x7B", 2 * (12.88 - 32000 * 4096 / 1e9)),
        ("Qwen3-30B-A3B", 2 * (3.35 - 151936 * 2048 / 1e9)),
        ("DeepSeek-V2-Lite", 2 * (2.66 - 102400 * 2048 / 1e9)),
    ],
)
def test_one_token_reads_the_active_parameters(shape: str, expected: float, tmp_path: Path) -> None:
    assert gigabytes(shape, 1, tmp_path) == pytest.approx(expected, rel=0.01)


def test_many_tokens_read_all_experts_and_no_other_weight_twice(tmp_path: Path) -> None:
    whole = 2 * (46.70 - 32000 * 4096 / 1e9)
    one, two, many = (gigabytes("Mixtral-8x7B", batch, tmp_path) for batch in (1, 2, 1000))
    assert many == pytest.approx(whole, rel=0.01)
    experts = 2 * 8 * 32 * 3 * 4096 * 14336 / 1e9
    assert two - one == pytest.approx(experts * (0.75 - 0.75**2), rel=1e-3)
    assert gigabytes("Llama-3-8B", 64, tmp_path) == gigabytes("Llama-3-8B", 1, tmp_path)
