"""Mixtures of experts with quantized weights: the text of their dequantized twins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.errors import ModelLoadError
from engine.layers.moe import ExpertLinear, Experts
from engine.llm import LLM, SamplingParams, TokensPrompt
from engine.quant.fp8 import Fp8
from engine.quant.fp8_blocks import Fp8Blocks
from engine.quant.gptq import Gptq
from engine.runner import load_runner
from kernels import quantized, reference_experts
from kernels.experts import Fp8Experts, Int4Experts
from tests.engine.models.families import CASES, Case, write
from tests.engine.quant import checkpoints
from tests.engine.quant.test_families import MATRIX
from tests.engine.quant.test_layouts import LAYOUTS
from tests.engine.quant.test_load import config
from tests.pairs import each_value

PROMPTS = [TokensPrompt(prompt_token_ids=ids) for ids in ([5, 9, 44, 70], [7] * 19)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
MIXTURES = [
    next(case for case in CASES if case.architecture == architecture)
    for architecture in ("MixtralForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM")
]


def texts(folder: Path) -> list[list[int]]:
    llm = LLM(folder, device="cpu", block_size=4, num_gpu_blocks_override=60, num_threads=1)
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(
    ("layout", "case"),
    each_value(
        [
            "awq",
            "gptq",
            "gptq desc_act",
            "compressed-tensors int4",
            "compressed-tensors fp8 per channel",
            "fp8 in blocks",
        ],
        MIXTURES,
    ),
    ids=lambda value: getattr(value, "name", value),
)
def test_every_layout(case: Case, layout: str, tmp_path: Path) -> None:
    """Those of latent attention, too."""
    quantize, document = LAYOUTS[layout]
    latent = {"q_lora_rank": 32} if "q_lora_rank" in case.fields else {}  # whole groups of 16
    write(case, tmp_path, **latent)
    twin = checkpoints.quantize_in_place(tmp_path, quantize, document, MATRIX)
    names = load_file(tmp_path / "model.safetensors")
    assert any(".experts.0." in name and not name.endswith("proj.weight") for name in names)
    got = texts(tmp_path)
    checkpoints.restore(tmp_path, twin)
    assert got == texts(tmp_path)


def expert_linear(experts: int = 3, features: int = 32, k: int = 128) -> ExpertLinear:
    parts = {"gate_proj": features // 2, "up_proj": features // 2}
    return ExpertLinear(range(experts), k, parts, dtype=torch.float32, device=torch.device("cpu"))


def test_where_there_are_products_the_experts_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: what is multiplied with is what was loaded, expert by expert."""
    monkeypatch.setattr(quantized, "serves", lambda _: True)
    kinds = (Fp8(), Fp8Experts), (Gptq(32), Int4Experts), (Fp8Blocks((12, 128)), Fp8Experts)
    for quantization, kind in kinds:
        layer = expert_linear()
        layer.quantize(quantization.weight)
        assert layer.quantized is not None
        gen = torch.Generator().manual_seed(0)
        for weight in layer.quantized:
            for _, tensor in weight.named_weights():
                tensor.draw(0.02, gen)
        plain = [weight.dequantize() for weight in layer.quantized]
        layer.pack()
        assert isinstance(layer.matrices, kind)
        for expert, matrix in enumerate(plain):
            found = reference_experts.matrix_of(layer.matrices, expert, torch.float32)
            torch.testing.assert_close(found, matrix)


def test_packed_experts_can_still_be_looked_through() -> None:
    """As start-up does, which looks for the linear layers to measure."""
    dtype, device = torch.float32, torch.device("cpu")
    experts = Experts(range(2), 128, 128, dtype=dtype, device=device)
    for _, linear in experts.linears():
        linear.quantize(Fp8().weight)
    assert len(list(experts.children())) == 4
    for _, linear in experts.linears():
        for weight in linear.quantized or []:
            for _, tensor in weight.named_weights():
                tensor.draw(0.02, torch.Generator().manual_seed(0))
    experts.pack()
    assert list(experts.children()) == []


@pytest.mark.parametrize(("group_size", "reordered"), [(16, False), (32, True)])
def test_what_the_grouped_product_does_not_take_is_dequantized_at_load(
    group_size: int, reordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow groups, and inputs in another order (desc_act)."""
    monkeypatch.setattr(quantized, "serves", lambda _: True)
    layer = expert_linear()
    layer.quantize(Gptq(group_size).weight)
    assert layer.quantized is not None
    for weight in layer.quantized:
        for name, tensor in weight.named_weights():
            tensor.draw(0.02, torch.Generator().manual_seed(0))
            if reordered and name == "g_idx":
                tensor.data.copy_(tensor.data.flip(1).roll(5, 1))
    plain = torch.stack([weight.dequantize() for weight in layer.quantized])
    layer.pack()
    assert isinstance(layer.matrices, torch.Tensor)
    assert layer.matrices.shape == (3, 32, 128)
    torch.testing.assert_close(layer.matrices, plain)


def test_experts_may_be_left_alone(tmp_path: Path) -> None:
    """By the checkpoint's list, as everywhere: the text is that without quantization."""
    write(MIXTURES[1], tmp_path)
    expected = texts(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 16,
        "modules_to_not_convert": ["self_attn", "experts", "mlp"],
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert texts(tmp_path) == expected


def test_some_experts_of_a_layer_are_refused(tmp_path: Path) -> None:
    write(MIXTURES[1], tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 16,
        "modules_to_not_convert": ["experts.1"],
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelLoadError, match=r"experts\.gate_up is one matrix here"):
        load_runner(config(tmp_path))


def test_a_layer_that_does_not_divide_is_named() -> None:
    layer = expert_linear(k=40)
    with pytest.raises(ValueError, match="group_size 32 does not divide 40 inputs"):
        layer.quantize(Gptq(32).weight)
