"""Every layout of quantized checkpoints, end to end: the text of its dequantized twin."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.architectures import QuantizationMethod
from engine.llm import LLM, SamplingParams, TokensPrompt
from kernels import quantized
from tests.engine.quant import checkpoints
from tests.engine.quant.checkpoints import FP8_NUMBERS, GROUP, INT4_NUMBERS, Quantize, compressed

PROMPTS = [TokensPrompt(prompt_token_ids=ids) for ids in ([5, 9, 44, 170], [7] * 19)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
TOKEN = {**FP8_NUMBERS, "strategy": "token", "dynamic": True}

LAYOUTS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "awq": (
        checkpoints.awq,
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
    ),
    "gptq": (
        checkpoints.gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
    ),
    "gptq v2": (
        partial(checkpoints.gptq, zero_offset=0),
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": GROUP,
            "checkpoint_format": "gptq_v2",
        },
    ),
    "gptq desc_act": (
        partial(checkpoints.gptq, desc_act=True),
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
    ),
    "compressed-tensors int4": (
        checkpoints.pack_quantized,
        compressed({**INT4_NUMBERS, "symmetric": True}, None),
    ),
    "compressed-tensors int4 asymmetric": (
        partial(checkpoints.pack_quantized, symmetric=False),
        compressed({**INT4_NUMBERS, "symmetric": False}, None),
    ),
    "compressed-tensors int4 per channel": (
        partial(checkpoints.pack_quantized, group=48),
        compressed({**INT4_NUMBERS, "strategy": "channel", "group_size": None}, None),
    ),
    "compressed-tensors int4 ordered": (
        partial(checkpoints.pack_quantized, ordered=True),
        compressed({**INT4_NUMBERS, "actorder": "group"}, None),
    ),
    "compressed-tensors fp8 per channel": (
        checkpoints.fp8,
        compressed({**FP8_NUMBERS, "strategy": "channel"}, TOKEN),
    ),
    "compressed-tensors fp8 per tensor": (
        partial(checkpoints.fp8, per_tensor=True),
        compressed({**FP8_NUMBERS, "strategy": "tensor"}, {**FP8_NUMBERS, "strategy": "tensor"}),
    ),
    "fp8": (
        partial(checkpoints.fp8, per_tensor=True),
        {"quant_method": "fp8", "activation_scheme": "static"},
    ),
    "modelopt": (
        partial(checkpoints.fp8, per_tensor=True),
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    ),
    # 16 rows of k_proj: a fused matrix has blocks that are smaller than the checkpoint's.
    "fp8 in blocks": (
        checkpoints.fp8_blocks,
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 16]},
    ),
    "fp8 in blocks that do not divide": (
        partial(checkpoints.fp8_blocks, block=(40, 20)),
        {"quant_method": "fp8", "weight_block_size": [40, 20]},
    ),
    "compressed-tensors fp8 in blocks": (
        partial(checkpoints.fp8_blocks, name="weight_scale"),
        compressed(
            {**FP8_NUMBERS, "strategy": "block", "block_structure": [32, 16]},
            {**FP8_NUMBERS, "strategy": "group", "group_size": 16, "dynamic": True},
        ),
    ),
}


def texts(
    model: Path, quantization: QuantizationMethod | None = None, **options: Any
) -> list[list[int]]:
    llm = LLM(
        model,
        skip_tokenizer_init=True,
        num_gpu_blocks_override=64,
        num_threads=1,
        quantization=quantization,
        **{"device": "cpu", **options},
    )
    return [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_writes_the_text_of_its_dequantized_twin(layout: str, tmp_path: Path) -> None:
    quantize, config = LAYOUTS[layout]
    # One per channel needs as many inputs everywhere.
    sizes = {"intermediate_size": 48} if "channel" in layout else {}
    stored, twin = checkpoints.write(tmp_path, quantize, config, **sizes)
    written = texts(stored)
    assert written == texts(twin)
    assert texts(stored, config["quant_method"]) == written


@pytest.mark.parametrize("one_order", [True, False])
@pytest.mark.parametrize(
    "layout", ["awq", "gptq desc_act", "compressed-tensors int4 per channel", "fp8"]
)
def test_the_weights_as_a_gpu_keeps_them(
    layout: str, one_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed for its kernels, multiplied in plain torch."""
    if not one_order and "desc_act" not in layout:
        pytest.skip("its inputs have one order")
    quantize, config = LAYOUTS[layout]
    sizes = {"intermediate_size": 48} if "channel" in layout else {}
    if "desc_act" in layout and one_order:  # for all that share their input, as in real ones
        rng = np.random.default_rng(0)
        order = {width: rng.permutation(np.arange(width) // GROUP) for width in (48, 96)}

        def quantize(weight: torch.Tensor, _rng: np.random.Generator) -> Any:
            return checkpoints.gptq(weight, _rng, groups=order[weight.shape[1]])

    stored, twin = checkpoints.write(tmp_path, quantize, config, **sizes)
    want = texts(twin)
    monkeypatch.setattr(quantized, "serves", lambda tensor: True)
    assert texts(stored) == want


def test_blocks_as_a_gpu_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize = partial(checkpoints.fp8_blocks, block=(128, 128))
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    sizes = {"hidden_size": 128, "intermediate_size": 384}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    stored, twin = checkpoints.write(tmp_path, quantize, config, **sizes, **heads)
    want = texts(twin)
    monkeypatch.setattr(quantized, "serves", lambda tensor: True)
    assert texts(stored) == want


@pytest.mark.gpu
def test_blocks_on_a_gpu(tmp_path: Path) -> None:
    """Prompts of few tokens: what more of them are multiplied with is rounded, too."""
    quantize = partial(checkpoints.fp8_blocks, block=(128, 128))
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    sizes = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    stored, twin = checkpoints.write(tmp_path, quantize, config, **sizes, **heads)
    where: dict[str, Any] = {"device": "cuda", "dtype": "float16", "max_num_batched_tokens": 16}
    assert texts(stored, **where) == texts(twin, **where)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "layout", ["awq", "gptq", "gptq desc_act", "compressed-tensors int4 asymmetric"]
)
def test_on_a_gpu_it_writes_the_text_of_its_dequantized_twin(layout: str, tmp_path: Path) -> None:
    """Both multiply by the same weights, rounded to float16."""
    quantize, config = LAYOUTS[layout]
    sizes = {"hidden_size": 128, "intermediate_size": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    stored, twin = checkpoints.write(tmp_path, quantize, config, **sizes, **heads)
    where: dict[str, Any] = {"device": "cuda", "dtype": "float16"}
    assert texts(stored, **where) == texts(twin, **where)


def test_the_layers_that_a_checkpoint_leaves_alone(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    config = compressed({**FP8_NUMBERS, "strategy": "channel"}, TOKEN)
    config["ignore"] = ["lm_head", "re:.*self_attn.*", "model.layers.1.mlp.down_proj"]
    stored, twin = checkpoints.write(tmp_path, checkpoints.fp8, config)
    tensors, plain = load_file(stored / "model.safetensors"), load_file(twin / "model.safetensors")
    for name in plain:
        if "self_attn" in name or name == "model.layers.1.mlp.down_proj.weight":
            tensors[name] = plain[name]
            tensors.pop(f"{name}_scale")
    save_file(tensors, stored / "model.safetensors")
    assert texts(stored) == texts(twin)
