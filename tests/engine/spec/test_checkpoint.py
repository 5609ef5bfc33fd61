"""Published layouts load, whichever file they come in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.errors import ModelLoadError
from engine.models.llama import ForCausalLM
from tests.engine.spec.bundled import Copy, load


@pytest.mark.parametrize("name", ["eagle3", "eagle", "medusa"])
def test_pickled_weights_are_the_same_weights(target: ForCausalLM, copy: Copy, name: str) -> None:
    folder = copy(name)
    from_safetensors = dict(load(folder, target).named_weights())
    (path,) = folder.glob("*.safetensors")
    published = "medusa_lm_head.pt" if name == "medusa" else "pytorch_model.bin"
    torch.save(load_file(path), folder / published)
    path.unlink()
    for key, weight in load(folder, target).named_weights():
        assert torch.equal(weight.data, from_safetensors[key].data)


def test_a_pickle_runs_no_code(copy: Copy, target: ForCausalLM) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("the pickle ran",))

    folder = copy("eagle")
    (folder / "model.safetensors").unlink()
    torch.save({"fc.weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        load(folder, target)


def test_a_folder_without_weights(target: ForCausalLM, copy: Copy) -> None:
    folder = copy("medusa")
    (folder / "medusa_lm_head.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"none of the files .*medusa_lm_head.pt"):
        load(folder, target)
