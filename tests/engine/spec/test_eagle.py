"""EAGLE and EAGLE-3 heads as they are published; what does not fit is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.demo.heads import HEADS_DIR
from engine.errors import ModelLoadError
from engine.models.llama import ForCausalLM
from engine.spec.eagle import EagleHead
from tests.engine.spec.bundled import Change, Copy, Tensors, load


def test_an_eagle_head_may_bring_its_own_embedding_and_bias(
    copy: Copy, target: ForCausalLM
) -> None:
    def add(tensors: Tensors) -> None:
        tensors["embed_tokens.weight"] = torch.randn(4096, 256)
        tensors["fc.bias"] = torch.randn(256)
        tensors["lm_head.weight"] = torch.randn(4096, 256)  # the target's counts

    head: EagleHead = load(copy("eagle", add), target)
    assert head.embed_tokens is not None
    assert head.fc.bias is not None
    assert load(HEADS_DIR / "eagle", target).embed_tokens is None


def test_aux_layers_default_to_those_of_the_paper(copy: Copy, target: ForCausalLM) -> None:
    assert load(copy("eagle3", eagle_config=None), target).aux_layers == (2, 4, 5)


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
            r"layers of auxiliary hidden states is \[2, 16, 29\], the model's is only 0 to 7",
        ),
        (
            "eagle3",
            {"eagle_config": {"use_aux_hidden_state": False}},
            "use_aux_hidden_state: only true",
        ),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    copy: Copy,
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
        (lambda t: t["d2t"].add_(9000), "d2t leads to tokens .*, the model has 0 to 4095"),
        (lambda t: t["d2t"].sub_(9000), "d2t leads to tokens -"),
        (lambda t: t.pop("d2t"), "lacks tensor 'd2t'"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    copy: Copy,
    target: ForCausalLM,
    change: Change,
    message: str,
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(copy("eagle3", change), target)
