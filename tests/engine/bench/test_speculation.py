from __future__ import annotations

import json

import pytest

from engine.bench import speculation


@pytest.mark.nightly
def test_prompt_lookup_is_compared_with_plain_decoding(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "copy --device cpu --num-threads 1 --drafts 7 --prompts 6 --max-seconds 5"
    speculation.main(arguments.split())
    plain, control, ngram = map(json.loads, capsys.readouterr().out.splitlines())
    assert plain["speed_up"] == 1.0 != control["speed_up"]
    assert ngram["interval"][0] <= ngram["speed_up"] <= ngram["interval"][1]


@pytest.mark.nightly
def test_the_demo_model_with_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "chat --device cpu --num-threads 1 --prompts 4 --batches 1 4 --never-right"
        " --max-seconds 0 --min-rounds 1"
    )
    speculation.main(arguments.split())
    lines = list(map(json.loads, capsys.readouterr().out.splitlines()))
    names = ("plain", "control", "eagle3 4", "eagle3 4 never right")
    assert [(line["batch"], line["engine"]) for line in lines] == [
        (batch, name) for batch in (1, 4) for name in names
    ]
    assert all(line["tok_s"] > 0 for line in lines)
    assert all(line["ideal"] == 1.0 for line in lines if line["engine"].endswith("never right"))


@pytest.mark.nightly
def test_drafts_that_are_right_by_chance(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "synthetic --shape demo --device cpu --num-threads 1 --batches 1 2 --drafts 2"
        " --lengths 1.0 3.0 --adaptive false --input-len 8 --output-len 16"
        " --max-seconds 0 --min-rounds 2"
    )
    speculation.main(arguments.split())
    lines = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [(line["length"], line["batch"], line["ideal"]) for line in lines] == [
        (length, batch, length) for length in (1.0, 3.0) for batch in (1, 2)
    ]
    assert all(line["num_steps"] > 5 and min(line["control"]) > 0 for line in lines)
