"""The bundled embedding model finds what it was trained to find, as its folder records."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from engine.demo.embedding import EMBEDDING_MODEL_DIR, train
from engine.demo.embedding.measure import num_right
from engine.demo.embedding.pairs import pairs, searches
from engine.llm import LLM

MAX_BYTES = 2_000_000


def test_a_search_has_one_right_sentence_of_ten_which_training_has_not_asked_for() -> None:
    asked = searches(40)
    questions = {pair.query for pair in islice(pairs("train", 1), 3000)}
    for one in asked:
        assert len(set(one.documents)) == 10
        assert one.query not in questions
    assert searches(5) == asked[:5]


def test_the_model_finds_the_right_sentence() -> None:
    files = [path for path in EMBEDDING_MODEL_DIR.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
    llm = LLM(EMBEDDING_MODEL_DIR, num_threads=1)
    asked = searches(60)
    assert num_right(llm, asked) >= 54
    assert num_right(llm, asked, dimensions=32) >= 48


@pytest.mark.nightly
def test_the_recorded_accuracy_is_what_is_measured(tmp_path: Path) -> None:
    from engine.demo.embedding.measure import shares

    recorded = json.loads((EMBEDDING_MODEL_DIR / "accuracy.json").read_text())
    found = shares(LLM(EMBEDDING_MODEL_DIR, num_threads=1), recorded["searches"])
    for name, share in found.items():
        assert share == pytest.approx(recorded[name], abs=0.005), name


@pytest.mark.nightly
def test_the_script_trains_a_model(tmp_path: Path) -> None:
    options = ["--out", str(tmp_path), "--steps", "20", "--batch", "32", "--searches", "50"]
    train.main(options)
    record = json.loads((tmp_path / "accuracy.json").read_text())
    assert record["held_out"] > 0.3  # by chance it would be 0.1
