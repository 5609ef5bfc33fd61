"""The bundled model that sees answers about held-out pictures through our own engine."""

from __future__ import annotations

import json

import pytest

from engine.demo.vision import VISION_MODEL_DIR
from engine.demo.vision.batches import held_out, split_of
from engine.demo.vision.measure import measure
from engine.images.load import load_processor
from engine.llm import LLM

PER_KIND = 40


@pytest.mark.nightly
def test_nine_of_ten_digits_are_read() -> None:
    if not (VISION_MODEL_DIR / "config.json").exists():
        pytest.skip("no model that sees is bundled")
    llm = LLM(model=str(VISION_MODEL_DIR), dtype="float32")
    accuracy = measure(llm, held_out("digit", PER_KIND, split_of("heldout", [])))
    assert accuracy.overall >= 0.9, accuracy.table()


def test_the_folder() -> None:
    """It says how it was measured, and is as small as it was promised to be."""
    if not (VISION_MODEL_DIR / "config.json").exists():
        pytest.skip("no model that sees is bundled")
    record = json.loads((VISION_MODEL_DIR / "accuracy.json").read_text())
    assert record["per_kind"]["digit"] >= 0.9
    assert sum(path.stat().st_size for path in VISION_MODEL_DIR.iterdir()) < 12_000_000
    assert load_processor(VISION_MODEL_DIR) is not None
