from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from engine.demo.heads import HEADS_DIR
from engine.models.llama import ForCausalLM
from engine.models.registry import create_model
from engine.weights.dummy import draw_weights
from tests.engine.spec.bundled import CONFIG, CPU, F32, Change, Copy
from tests.engine.spec.tiny_heads import draw_medusa, save_medusa


@pytest.fixture(scope="package")
def target() -> ForCausalLM:
    model = create_model(CONFIG, max_model_len=64, dtype=F32, device=CPU)
    draw_weights(model, seed=0)
    assert isinstance(model, ForCausalLM)
    return model


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    numbers = count()

    def make(name: str, change: Change = lambda tensors: None, **fields: object) -> Path:
        folder = tmp_path / str(next(numbers)) / name
        if name == "medusa":
            save_medusa(folder, draw_medusa(CONFIG.hidden_size, CONFIG.vocab_size))
        else:
            shutil.copytree(HEADS_DIR / name, folder)
        (path,) = folder.glob("*.safetensors")
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
        config = json.loads((folder / "config.json").read_text()) | fields
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))
        return folder

    return make
