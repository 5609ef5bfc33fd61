"""gpt-oss's checkpoints in MXFP4: the text of their dequantized twins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelLoadError
from engine.llm import LLM, SamplingParams, TokensPrompt
from kernels.experts import MXFP4_BLOCK
from kernels.reference_experts import dequantize_mxfp4
from tests.engine.models.families import CASES, write

CASE = next(case for case in CASES if case.architecture == "GptOssForCausalLM")
PROMPTS = [TokensPrompt(prompt_token_ids=ids) for ids in ([5, 9, 44, 70], [7] * 19)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
CONFIG: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn"],
}


def texts(folder: Path, **options: Any) -> list[list[int]]:
    llm = LLM(folder, device="cpu", num_gpu_blocks_override=60, num_threads=1, **options)
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY)]


def quantize(folder: Path) -> dict[str, torch.Tensor]:
    """Draw the experts in MXFP4, as the published checkpoints have them; returns what they mean."""
    gen = torch.Generator().manual_seed(0)
    tensors, twin = load_file(folder / "model.safetensors"), {}
    for name, tensor in list(tensors.items()):
        twin[name] = tensor
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            num_experts, inputs, features = tensors.pop(name).shape
            shape = num_experts, features, inputs // MXFP4_BLOCK
            blocks = torch.randint(256, (*shape, MXFP4_BLOCK // 2), generator=gen).byte()
            scales = torch.randint(122, 126, shape, generator=gen).byte()
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            meant = dequantize_mxfp4(blocks.flatten(2), scales)
            twin[name] = meant.transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    describe(folder, CONFIG)
    return twin


def describe(folder: Path, quantization: dict[str, Any] | None) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))


def test_all_numbers() -> None:
    """By the table of the specification: the sixteen numbers, times a power of two."""
    packed = torch.arange(16, dtype=torch.uint8) | torch.arange(16, dtype=torch.uint8) << 4
    scale = torch.tensor([127 + 3], dtype=torch.uint8)
    sizes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    want = [8 * number for number in (*sizes, *(-size for size in sizes)) for _ in range(2)]
    assert dequantize_mxfp4(packed, scale).tolist() == want


def test_a_checkpoint(tmp_path: Path) -> None:
    folder = write(CASE, tmp_path)
    twin = quantize(folder)
    got = texts(folder)
    save_file(twin, folder / "model.safetensors", {"format": "pt"})
    describe(folder, None)
    assert got == texts(folder)


def test_random_weights_of_that_form(tmp_path: Path) -> None:
    folder = write(CASE, tmp_path)
    describe(folder, CONFIG)
    assert all(map(len, texts(folder, load_format="dummy")))


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    folder = write(CASE, tmp_path)
    with pytest.raises(ModelLoadError, match=r"experts: experts that are stored .* MXFP4 only"):
        texts(folder, quantization="fp8")
    folder = write(CASE, tmp_path, intermediate_size=40)
    describe(folder, CONFIG)
    with pytest.raises(ModelLoadError, match="40 inputs are no multiple of 32"):
        texts(folder)
    folder = write(CASES[0], tmp_path)
    describe(folder, CONFIG)
    with pytest.raises(ModelLoadError, match="'mxfp4' is for gpt-oss only"):
        texts(folder)
