from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.demo.heads.train import cross_entropy, from_pass, parse, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("heads")
    arguments = "--answers 4 --held-out 2 --max-steps 1 --tokens-per-batch 256 --num-passes 2"
    means = run(parse(["--out", str(out), "--device", "cpu", *arguments.split()]))
    assert set(means) == {"eagle3", "eagle"}
    assert all(value >= 1 for value in means.values())
    return out


def test_heads_are_written_as_they_are_published(trained: Path) -> None:
    eagle3 = load_file(trained / "eagle3" / "model.safetensors")
    config = json.loads((trained / "eagle3" / "config.json").read_text())
    assert eagle3["fc.weight"].shape == (256, 768)
    assert eagle3["fc.weight"].dtype == torch.bfloat16
    assert len(eagle3["d2t"]) == config["draft_vocab_size"] == 3072
    ids = torch.arange(3072) + eagle3["d2t"]
    assert eagle3["t2d"].nonzero().flatten().tolist() == ids.tolist()
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    eagle = load_file(trained / "eagle" / "model.safetensors")
    assert "layers.0.self_attn.q_proj.weight" in eagle


def test_heads_fit_beside_the_model(trained: Path) -> None:
    size = sum(file.stat().st_size for file in trained.rglob("*") if file.is_file())
    assert size <= 6e6


def test_places_without_a_past_do_not_count() -> None:
    counts = torch.ones(2, 4, dtype=torch.bool)
    assert from_pass(counts, 2).tolist() == [[False, False, True, True]] * 2
    assert from_pass(counts, 0).all()
    assert counts.all()


def test_cross_entropy_is_over_the_drafted_part() -> None:
    logits = torch.tensor([[[0.0, 0.0], [5.0, -5.0]]])
    probs = torch.tensor([[[0.2, 0.2], [0.4, 0.0]]])
    all_places = torch.ones(1, 2, dtype=torch.bool)
    expected = (torch.tensor(2.0).log() + torch.tensor([5.0, -5.0]).softmax(0)[0].log().neg()) / 2
    torch.testing.assert_close(cross_entropy(logits, probs, all_places), expected)
    assert cross_entropy(logits, probs, torch.zeros(1, 2, dtype=torch.bool)) == 0
