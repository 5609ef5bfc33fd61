"""Medusa heads in both layouts; what does not fit is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.errors import ModelLoadError
from engine.models.llama import ForCausalLM
from engine.spec.medusa import MedusaHeads
from tests.engine.spec.bundled import Copy, Tensors, load


def test_both_medusa_layouts_say_the_same(copy: Copy, target: ForCausalLM) -> None:
    theirs = load(copy("medusa"), target)

    def as_in_vllm(tensors: Tensors) -> None:
        for head in range(3):
            for kind in ("weight", "bias"):
                moved = tensors.pop(f"{head}.0.linear.{kind}")
                tensors[f"blocks.{head}.layers.0.{kind}"] = moved
            tensors[f"lm_heads.{head}.weight"] = tensors.pop(f"{head}.1.weight")

    fields = {"medusa_num_heads": None, "num_heads": 3, "num_hidden_layers": 1}
    folder = copy("medusa", as_in_vllm, medusa_num_layers=None, **fields)
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(7))
    for one, other in zip(theirs.all_logits(x), load(folder, target).all_logits(x), strict=True):
        assert torch.equal(one, other)


def test_a_truncated_medusa_vocabulary(copy: Copy, target: ForCausalLM) -> None:
    token_map = torch.arange(5, 905)

    def truncate(tensors: Tensors) -> None:
        for head in range(3):
            tensors[f"{head}.1.weight"] = tensors[f"{head}.1.weight"][token_map].contiguous()
        tensors["token_map"] = token_map

    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(7))
    whole = load(copy("medusa"), target).all_logits(x)[0]
    heads: MedusaHeads = load(copy("medusa", truncate), target)
    part = heads.all_logits(x)[0]
    torch.testing.assert_close(part[:, token_map], whole[:, token_map])
    assert part[:, 905:].isneginf().all()


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("medusa", {"hidden_size": 512}, "hidden_size is 512, the model's is 256"),
        ("medusa", {"medusa_num_heads": None}, "lacks medusa_num_heads"),
        ("medusa", {"original_lm_head": True}, "original_lm_head: not supported"),
        ("medusa", {"medusa_num_heads": 4}, "lacks tensor 'heads.3"),
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


@pytest.mark.parametrize("off", [-6, 4000])
def test_a_vocabulary_of_another_model_is_refused(
    copy: Copy, target: ForCausalLM, off: int
) -> None:
    def truncate(tensors: Tensors) -> None:
        tensors["token_map"] = torch.arange(5, 905) + off

    with pytest.raises(ModelLoadError, match="token_map leads to tokens"):
        load(copy("medusa", truncate), target)
