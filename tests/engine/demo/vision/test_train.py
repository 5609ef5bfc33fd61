"""The training script, from fonts to a checkpoint that answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.demo.vision import train
from engine.demo.vision.fonts import find_fonts
from engine.images.load import load_processor
from engine.llm import LLM, SamplingParams


@pytest.mark.nightly
def test_a_tiny_model_is_trained_saved_measured_and_served(tmp_path: Path) -> None:
    if not find_fonts("train"):
        pytest.skip("no fonts to train with")
    out = tmp_path / "model"
    options = ["--size", "tiny", "--max-steps", "3", "--chats", "4", "--eval-per-kind", "2"]
    train.main(["--out", str(out), "--device", "cpu", "--workers", "1", *options])
    assert json.loads((out / "accuracy.json").read_text())["pictures"] == 20
    assert "trained 3 steps" in (tmp_path / "model.log").read_text()
    processor = load_processor(out)
    assert processor is not None
    assert processor.fit(500, 400).num_tokens <= 64
    from PIL import Image

    llm = LLM(model=str(out), dtype="float32", max_model_len=256)
    content = [
        {"type": "image", "image": Image.new("RGB", (90, 70), "red")},
        {"type": "text", "text": "What is this?"},
    ]
    messages = [{"role": "user", "content": content}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=3))
    assert output.outputs[0].token_ids
