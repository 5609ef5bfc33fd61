"""Published layouts load, whichever file they come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from engine.errors import ModelLoadError
from engine.models.llama import ForCausalLM
from engine.spec.checkpoint import check_ids, read_fields
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


def test_ids_are_the_models_from_the_first_to_the_last(tmp_path: Path) -> None:
    for good in ([0, 9], [9], []):
        check_ids(tmp_path, "d2t", torch.tensor(good, dtype=torch.int64), 10)
    for bad, told in (([0, 10], "0 to 10"), ([-1, 9], "-1 to 9")):
        with pytest.raises(ModelLoadError, match=rf"d2t leads to tokens {told}, .* 0 to 9"):
            check_ids(tmp_path, "d2t", torch.tensor(bad), 10)


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    class Fields(msgspec.Struct):
        hidden_size: int

    with pytest.raises(ModelLoadError, match=r"cannot read .*config\.json: No such file"):
        read_fields(tmp_path, Fields)
    (tmp_path / "config.json").write_text('{"hidden_size": "many"}')
    with pytest.raises(ModelLoadError, match=r"config\.json: .*hidden_size"):
        read_fields(tmp_path, Fields)
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "layers": 2}')
    assert read_fields(tmp_path, Fields).hidden_size == 8
