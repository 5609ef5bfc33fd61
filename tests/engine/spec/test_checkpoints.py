"""Published layouts load, whichever file they come in; what does not fit is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.demo import MODEL_DIR
from engine.demo.heads import HEADS_DIR
from engine.errors import ModelLoadError
from engine.models.llama import ForCausalLM
from engine.models.registry import create_model, read_config
from engine.spec.draft_model import load_draft_model
from engine.spec.eagle import EagleHead, load_eagle, load_eagle3
from engine.spec.medusa import MedusaHeads, load_medusa
from engine.weights.dummy import draw_weights

CPU, F32 = torch.device("cpu"), torch.float32
CONFIG = read_config(MODEL_DIR)
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def target() -> ForCausalLM:
    model = create_model(CONFIG, max_model_len=64, dtype=F32, device=CPU)
    draw_weights(model, seed=0)
    assert isinstance(model, ForCausalLM)
    return model


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """A bundled head, with some of its config and tensors changed."""

    def make(
        name: str,
        change: Callable[[Tensors], object] = lambda tensors: None,
        **fields: object,
    ) -> Path:
        folder = tmp_path / name
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


def load(folder: Path, target: ForCausalLM) -> Any:
    if folder.name == "medusa":
        return load_medusa(folder, CONFIG, dtype=F32, device=CPU)
    method = load_eagle3 if folder.name == "eagle3" else load_eagle
    return method(folder, target, CONFIG, max_model_len=64, dtype=F32, device=CPU)


@pytest.mark.parametrize("name", ["eagle3", "eagle", "medusa"])
def test_pickled_weights_are_the_same_weights(
    target: ForCausalLM, copy: Callable[..., Path], name: str
) -> None:
    folder = copy(name)
    from_safetensors = dict(load(folder, target).named_weights())
    (path,) = folder.glob("*.safetensors")
    published = "medusa_lm_head.pt" if name == "medusa" else "pytorch_model.bin"
    torch.save(load_file(path), folder / published)
    path.unlink()
    for key, weight in load(folder, target).named_weights():
        assert torch.equal(weight.data, from_safetensors[key].data)


def test_a_pickle_runs_no_code(copy: Callable[..., Path], target: ForCausalLM) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("the pickle ran",))

    folder = copy("eagle")
    (folder / "model.safetensors").unlink()
    torch.save({"fc.weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        load(folder, target)


def test_both_medusa_layouts_say_the_same(copy: Callable[..., Path], target: ForCausalLM) -> None:
    theirs = load(HEADS_DIR / "medusa", target)

    def as_in_vllm(tensors: Tensors) -> None:
        for head in range(3):
            for kind in ("weight", "bias"):
                moved = tensors.pop(f"{head}.0.linear.{kind}")
                tensors[f"blocks.{head}.layers.0.{kind}"] = moved
            tensors[f"lm_heads.{head}.weight"] = tensors.pop(f"{head}.1.weight")

    fields = {"medusa_num_heads": None, "num_heads": 3, "num_hidden_layers": 1}
    folder = copy("medusa", as_in_vllm, medusa_num_layers=None, **fields)
    x = torch.randn(2, 256)
    for one, other in zip(theirs.all_logits(x), load(folder, target).all_logits(x), strict=True):
        assert torch.equal(one, other)


def test_a_truncated_medusa_vocabulary(copy: Callable[..., Path], target: ForCausalLM) -> None:
    token_map = torch.arange(5, 905)

    def truncate(tensors: Tensors) -> None:
        for head in range(3):
            tensors[f"{head}.1.weight"] = tensors[f"{head}.1.weight"][token_map].contiguous()
        tensors["token_map"] = token_map

    x = torch.randn(2, 256)
    whole = load(HEADS_DIR / "medusa", target).all_logits(x)[0]
    heads: MedusaHeads = load(copy("medusa", truncate), target)
    part = heads.all_logits(x)[0]
    torch.testing.assert_close(part[:, token_map], whole[:, token_map])
    assert part[:, 905:].isneginf().all()


def test_an_eagle_head_may_bring_its_own_embedding_and_bias(
    copy: Callable[..., Path], target: ForCausalLM
) -> None:
    def add(tensors: Tensors) -> None:
        tensors["embed_tokens.weight"] = torch.randn(4096, 256)
        tensors["fc.bias"] = torch.randn(256)
        tensors["lm_head.weight"] = torch.randn(4096, 256)  # the target's counts

    head: EagleHead = load(copy("eagle", add), target)
    assert head.embed_tokens is not None
    assert head.fc.bias is not None
    assert load(HEADS_DIR / "eagle", target).embed_tokens is None


def test_aux_layers_default_to_those_of_the_paper(
    copy: Callable[..., Path], target: ForCausalLM
) -> None:
    assert load(copy("eagle3", eagle_config=None), target).tapped_layers == (2, 4, 5)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("eagle", {"vocab_size": 5000}, "vocab_size is 5000, the model's is 4096"),
        ("eagle", {"hidden_size": 128, "head_dim": 16}, "hidden_size is 128, the model's is 256"),
        ("eagle3", {"target_hidden_size": 512}, "target_hidden_size is 512, the model's is 256"),
        ("eagle3", {"draft_vocab_size": 100}, r"d2t has shape \[3072\], draft_vocab_size is 100"),
        ("eagle3", {"norm_output": True}, "norm_output: not supported"),
        (
            "eagle3",
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}},
            r"tapped layers is \[2, 16, 29\], the model's is only 0 to 7",
        ),
        (
            "eagle3",
            {"eagle_config": {"use_aux_hidden_state": False}},
            "use_aux_hidden_state: only true",
        ),
        ("medusa", {"hidden_size": 512}, "hidden_size is 512, the model's is 256"),
        ("medusa", {"medusa_num_heads": None}, "lacks medusa_num_heads"),
        ("medusa", {"original_lm_head": True}, "original_lm_head: not supported"),
        ("medusa", {"medusa_num_heads": 4}, "lacks tensor 'heads.3"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    copy: Callable[..., Path],
    target: ForCausalLM,
    name: str,
    fields: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(copy(name, **fields), target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("fc.weight"), "lacks tensor 'fc.weight'"),
        (lambda t: t.update(extra=torch.zeros(1)), "holds tensor 'extra'"),
        (
            lambda t: t.update({"fc.weight": torch.zeros(256, 512)}),
            r"tensor 'fc.weight' has shape \[256, 512\], but \[256, 768\] is needed",
        ),
        (lambda t: t["d2t"].add_(9000), "the largest id of d2t"),
        (lambda t: t.pop("d2t"), "lacks tensor 'd2t'"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    copy: Callable[..., Path],
    target: ForCausalLM,
    change: Callable[[Tensors], object],
    message: str,
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(copy("eagle3", change), target)


def test_a_folder_without_weights(target: ForCausalLM, copy: Callable[..., Path]) -> None:
    folder = copy("medusa")
    (folder / "medusa_lm_head.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"none of the files .*medusa_lm_head.pt"):
        load(folder, target)


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="vocab_size is 4096, the model's is 32000"):
        load_draft_model(MODEL_DIR, 32000, max_model_len=64, dtype=F32, device=CPU)
    with pytest.raises(ModelLoadError, match="max_position_embeddings is 2048"):
        load_draft_model(MODEL_DIR, 4096, max_model_len=9000, dtype=F32, device=CPU)
