"""The bundled model that sees answers about held-out pictures through our own engine."""

from __future__ import annotations

import pytest

from engine.demo.vision import MODEL_DIR
from engine.demo.vision.batches import held_out, split_of
from engine.demo.vision.measure import measure
from engine.llm import LLM

PER_KIND = 40


@pytest.mark.nightly
def test_nine_of_ten_digits_are_read() -> None:
    if not (MODEL_DIR / "config.json").exists():
        pytest.skip("no model that sees is bundled")
    llm = LLM(model=str(MODEL_DIR), dtype="float32")
    accuracy = measure(llm, held_out("digit", PER_KIND, split_of("heldout", [])))
    assert accuracy.overall >= 0.9, accuracy.table()
