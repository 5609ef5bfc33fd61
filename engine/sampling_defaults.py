"""How a model wants to be sampled when a request does not say: its ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine.errors import ModelLoadError
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import read_json

_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def load(model_dir: Path) -> Mapping[str, float | int]:
    """The defaults that the model's folder states, as fields of ``SamplingParams``.

    Raises:
        ModelLoadError: the file is unreadable, or a value is impossible.
    """
    path = model_dir / "generation_config.json"
    stated = read_json(path)
    defaults = {name: stated[name] for name in _NAMES if stated.get(name) is not None}
    try:
        msgspec.convert(defaults, SamplingParams)
    except msgspec.ValidationError as error:
        raise ModelLoadError(f"{path}: {error}") from error
    return defaults
