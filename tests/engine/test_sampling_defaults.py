"""A model's own sampling defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import sampling_defaults
from engine.demo import MODEL_DIR
from engine.errors import ModelLoadError


def write(folder: Path, content: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(content))
    return folder


def test_no_file_states_nothing(tmp_path: Path) -> None:
    assert sampling_defaults.load(tmp_path) == {}


def test_only_sampling_fields_that_are_set_count(tmp_path: Path) -> None:
    stated = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": 2, "do_sample": True}
    assert sampling_defaults.load(write(tmp_path, stated)) == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("stated", [{"top_p": 0}, {"temperature": "hot"}, {"min_p": 2}])
def test_an_impossible_value_names_file_and_field(
    stated: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=rf"generation_config\.json.*{next(iter(stated))}"):
        sampling_defaults.load(write(tmp_path, stated))


def test_the_bundled_model_is_careful() -> None:
    assert sampling_defaults.load(MODEL_DIR)["temperature"] < 1
