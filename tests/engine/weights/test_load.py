from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelLoadError
from engine.hub import weight_files
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.messages import LoadProgress
from engine.weights import load
from engine.weights.load import check_files, load_weights

Tensors = dict[str, torch.Tensor]


class Block(Module):
    def __init__(self) -> None:
        self.qkv_proj = Linear(
            4,
            {"q_proj": 6, "k_proj": 2},
            bias=True,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.lm_head = Linear(
            4, {"": 3}, bias=False, dtype=torch.float32, device=torch.device("cpu")
        )


def tensors() -> Tensors:
    return {
        "q_proj.weight": torch.randn(6, 4),
        "q_proj.bias": torch.randn(6),
        "k_proj.weight": torch.randn(2, 4),
        "k_proj.bias": torch.randn(2),
        "lm_head.weight": torch.randn(3, 4),
    }


class Model(Module):
    """The checkpoint's names carry a prefix, as real ones do."""

    def __init__(self) -> None:
        self.model = Block()


def write(folder: Path, content: Tensors, shards: int = 1) -> None:
    named = {f"model.{name}": tensor for name, tensor in content.items()}
    if shards == 1:
        save_file(named, folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i:05d}-of-{shards:05d}.safetensors"
        part = dict(list(named.items())[i::shards])
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("shards", [1, 3])
def test_every_part_lands_in_its_place(tmp_path: Path, shards: int) -> None:
    content = tensors()
    write(tmp_path, content, shards)
    model = Model()
    seen: list[LoadProgress] = []
    load_weights(model, tmp_path, tied=False, on_progress=seen.append)
    qkv = model.model.qkv_proj
    assert torch.equal(
        qkv.weight.data, torch.cat((content["q_proj.weight"], content["k_proj.weight"]))
    )
    assert qkv.bias is not None
    assert torch.equal(qkv.bias.data, torch.cat((content["q_proj.bias"], content["k_proj.bias"])))
    assert torch.equal(model.model.lm_head.weight.data, content["lm_head.weight"])
    fractions = [progress.fraction for progress in seen]
    assert fractions[0] == 0
    assert fractions == sorted(set(fractions))
    assert fractions[-1] < 1
    assert len({progress.message for progress in seen}) == shards


def test_other_dtypes_are_converted(tmp_path: Path) -> None:
    content = tensors()
    write(tmp_path, {name: t.bfloat16() for name, t in content.items()})
    model = Model()
    load_weights(model, tmp_path, tied=False)
    assert model.model.lm_head.weight.data.dtype == torch.float32
    torch.testing.assert_close(
        model.model.lm_head.weight.data, content["lm_head.weight"], rtol=1e-2, atol=1e-2
    )


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    content = tensors()
    del content["k_proj.bias"], content["q_proj.bias"]
    write(tmp_path, content)
    with pytest.raises(ModelLoadError, match=r"lacks tensor 'model\.k_proj\.bias' and 1 more"):
        load_weights(Model(), tmp_path, tied=False)


def test_extra_tensors_are_named(tmp_path: Path) -> None:
    write(tmp_path, {**tensors(), "g_proj.weight": torch.zeros(1)})
    with pytest.raises(ModelLoadError, match=r"'model\.g_proj\.weight', which the model has no"):
        load_weights(Model(), tmp_path, tied=False)


def test_stored_rotary_frequencies_are_ignored(tmp_path: Path) -> None:
    content = tensors()
    write(tmp_path, {**content, "layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(1)})
    model = Model()
    load_weights(model, tmp_path, tied=False)
    assert torch.equal(model.model.lm_head.weight.data, content["lm_head.weight"])


def test_a_stored_head_is_ignored_only_when_tied(tmp_path: Path) -> None:
    block = Block()
    del block.lm_head
    save_file(tensors(), tmp_path / "model.safetensors")
    load_weights(block, tmp_path, tied=True)
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight"):
        load_weights(block, tmp_path, tied=False)


def test_misshapen_tensors_are_named(tmp_path: Path) -> None:
    write(tmp_path, {**tensors(), "k_proj.weight": torch.randn(3, 4)})
    with pytest.raises(
        ModelLoadError, match=r"'model\.k_proj\.weight' has shape \[3, 4\].*\[2, 4\]"
    ):
        load_weights(Model(), tmp_path, tied=False)


def test_tensors_of_another_kind_of_dtype_are_named(tmp_path: Path) -> None:
    """As those of a quantized checkpoint whose config does not say how."""
    for dtype, name in ((torch.int32, "I32"), (torch.float8_e4m3fn, "F8_E4M3")):
        write(tmp_path, {**tensors(), "k_proj.weight": torch.zeros(2, 4).to(dtype)})
        with pytest.raises(
            ModelLoadError,
            match=rf"'model\.k_proj\.weight' has dtype {name}, the config asks for a float dtype",
        ):
            load_weights(Model(), tmp_path, tied=False)


def test_progress_goes_on_within_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But is not told of each of a thousand tensors."""
    content = tensors()
    write(tmp_path, content)
    numbers = []
    for step in (0.0, 0.1):
        monkeypatch.setattr(load, "_PROGRESS_STEP", step)
        seen: list[LoadProgress] = []
        load_weights(Model(), tmp_path, tied=False, on_progress=seen.append)
        numbers.append(len(seen))
        assert 0 < seen[-1].fraction < 1
    assert numbers[0] == len(content) > numbers[1] > 1


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, tensors(), shards=2)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="has no model-00001-of-00002"):
        weight_files(tmp_path)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no model\.safetensors"):
        weight_files(tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read"):
        load_weights(Model(), tmp_path, tied=False)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"index\.json"):
        weight_files(tmp_path)


def test_saving_what_was_loaded_gives_the_checkpoint_back(tmp_path: Path) -> None:
    """The test's own writer is honest."""
    content = tensors()
    write(tmp_path, content)
    assert set(load_file(tmp_path / "model.safetensors")) == {f"model.{n}" for n in content}


def test_a_truncated_shard_is_named_and_nothing_is_half_loaded(tmp_path: Path) -> None:
    write(tmp_path, tensors(), shards=3)
    last = tmp_path / "model-00002-of-00003.safetensors"
    last.write_bytes(last.read_bytes()[:-5])
    model = Model()
    for _, weight in model.named_weights():
        weight.data.fill_(7)
    with pytest.raises(ModelLoadError, match=r"model-00002-of-00003\.safetensors .* cut short"):
        load_weights(model, tmp_path, tied=False)
    with pytest.raises(ModelLoadError, match=r"model-00002-of-00003\.safetensors .* cut short"):
        check_files(tmp_path)
    assert all((weight.data == 7).all() for _, weight in model.named_weights())


def test_a_model_may_know_tensors_by_other_names_or_not_need_them(tmp_path: Path) -> None:
    content = tensors()
    write(tmp_path, {**content, "later.weight": torch.zeros(1)})

    def place_of(name: str) -> str | None:
        return None if "later" in name else name.removeprefix("model.")

    block = Block()
    load_weights(block, tmp_path, tied=False, place_of=place_of)
    assert torch.equal(block.lm_head.weight.data, content["lm_head.weight"])


MEASURE = """
import sys
from pathlib import Path
import torch
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.weights.load import load_weights

class Model(Module):
    def __init__(self):
        how = {"bias": False, "dtype": torch.float32, "device": torch.device("cpu")}
        self.layers = [Linear(1024, {"": 4096}, **how) for _ in range(8)]

def mebibytes(field):
    (line,) = [l for l in Path("/proc/self/status").read_text().splitlines() if field in l]
    return int(line.split()[1]) >> 10

model, before = Model(), mebibytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
load_weights(model, Path(sys.argv[1]), tied=False)
print(mebibytes("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc/self/clear_refs")
def test_loading_takes_the_weights_and_one_shard_of_memory(tmp_path: Path) -> None:
    """8 shards of 16 MiB; 24 MiB for what is imported and allocated meanwhile."""
    weight_map: dict[str, str] = {}
    for i in range(8):
        file = f"model-{i}.safetensors"
        save_file({f"layers.{i}.weight": torch.rand(4096, 1024)}, tmp_path / file)
        weight_map[f"layers.{i}.weight"] = file
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert 8 * 16 <= int(done.stdout) <= 8 * 16 + 16 + 24
