"""Small quantized checkpoints, each beside its twin with the same weights dequantized.

The packing follows the formats' own descriptions, one number at a time, in numpy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.engine.runner.tiny_llama import save_tiny_llama

GROUP = 16
Tensors = dict[str, torch.Tensor]
Quantize = Callable[[torch.Tensor, np.random.Generator], tuple[Tensors, torch.Tensor]]
"""From a weight to the checkpoint's tensors in its place, and what they stand for."""


def pack(values: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """values: [rows, columns]; nibble i of a word holds column order[i] of its eight."""
    rows, columns = values.shape
    words = np.zeros((rows, columns // 8), dtype=np.uint32)
    for row in range(rows):
        for word in range(columns // 8):
            for i, column in enumerate(order):
                nibble = int(values[row, word * 8 + column]) & 15
                words[row, word] |= np.uint32(nibble << (4 * i))
    return torch.from_numpy(words.view(np.int32))


def rounded(
    weight: torch.Tensor, groups: np.ndarray, *, symmetric: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, torch.Tensor]:
    """(nibbles [out, in], scales [out, groups], zeros [out, groups], what they stand for)."""
    values = weight.double().numpy()
    num_groups = int(groups.max()) + 1
    scales = np.zeros((len(values), num_groups), dtype=np.float16)
    zeros = np.full((len(values), num_groups), 8)
    for group in range(num_groups):
        part = values[:, groups == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, group] = np.maximum(-low, high) / 7
        else:
            scales[:, group] = (high - low) / 15
            zeros[:, group] = np.clip(np.round(-low / scales[:, group]), 1, 15)
    scale, zero = scales.astype(np.float64)[:, groups], zeros[:, groups]
    nibbles = np.clip(np.round(values / scale) + zero, 0, 15).astype(np.int64)
    return nibbles, scales, zeros, torch.from_numpy((nibbles - zero) * scale).float()


def awq(weight: torch.Tensor, _rng: np.random.Generator) -> tuple[Tensors, torch.Tensor]:
    nibbles, scales, zeros, meant = rounded(weight, np.arange(weight.shape[1]) // GROUP)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        "qweight": pack(nibbles.T, order),
        "qzeros": pack(zeros.T, order),
        "scales": torch.from_numpy(scales.T.copy()),
    }
    return tensors, meant


def gptq(
    weight: torch.Tensor,
    rng: np.random.Generator,
    *,
    zero_offset: int = 1,
    desc_act: bool = False,
    groups: np.ndarray | None = None,
) -> tuple[Tensors, torch.Tensor]:
    """groups: of each input; by default of neighbours, or with desc_act of any."""
    if groups is None:
        groups = np.arange(weight.shape[1]) // GROUP
        if desc_act:
            rng.shuffle(groups)
    nibbles, scales, zeros, meant = rounded(weight, groups)
    tensors = {
        "qweight": pack(nibbles).T.contiguous(),
        "qzeros": pack(zeros.T - zero_offset),
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
        "bias": torch.zeros(len(weight), dtype=torch.float16),
    }
    return tensors, meant


def pack_quantized(
    weight: torch.Tensor,
    rng: np.random.Generator,
    *,
    symmetric: bool = True,
    group: int = GROUP,
    ordered: bool = False,
) -> tuple[Tensors, torch.Tensor]:
    groups = np.arange(weight.shape[1]) // group
    if ordered:
        rng.shuffle(groups)
    nibbles, scales, zeros, meant = rounded(weight, groups, symmetric=symmetric)
    # Signed integers, with 8 added.
    tensors = {
        "weight_packed": pack(nibbles),
        "weight_scale": torch.from_numpy(scales),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack(zeros.T).T.contiguous()
    if ordered:
        tensors["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
    return tensors, meant


def fp8(
    weight: torch.Tensor, _rng: np.random.Generator, *, per_tensor: bool = False
) -> tuple[Tensors, torch.Tensor]:
    largest = weight.abs().amax() if per_tensor else weight.abs().amax(1, keepdim=True)
    scale = largest / 448
    quantized = (weight / scale).to(torch.float8_e4m3fn)
    tensors = {"weight": quantized, "weight_scale": scale}
    if per_tensor:
        tensors["input_scale"] = torch.tensor(0.01)
    return tensors, quantized.float() * scale


def fp8_blocks(
    weight: torch.Tensor,
    _rng: np.random.Generator,
    *,
    block: tuple[int, int] = (32, 16),
    name: str = "weight_scale_inv",
) -> tuple[Tensors, torch.Tensor]:
    rows, columns = block
    scale = torch.empty(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    quantized, meant = torch.empty_like(weight, dtype=torch.float8_e4m3fn), weight.clone()
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scale[i, j] = weight[at].abs().max() / 448
            quantized[at] = (weight[at] / scale[i, j]).to(torch.float8_e4m3fn)
            meant[at] = quantized[at].float() * scale[i, j]
    return {"weight": quantized, name: scale}, meant


def write(
    folder: Path, quantize: Quantize, quantization_config: dict[str, Any], **config: Any
) -> tuple[Path, Path]:
    """The folders of a tiny quantized Llama and of its twin."""
    stored, twin = folder / "quantized", folder / "twin"
    fields = {"intermediate_size": 96, "num_hidden_layers": 2, **config}
    save_tiny_llama(twin, **fields)
    rng = np.random.default_rng(0)
    tensors, meant = load_file(twin / "model.safetensors"), {}
    for name in list(tensors):
        if not name.endswith("_proj.weight"):
            continue
        weight = tensors.pop(name)
        made, meant[name] = quantize(weight, rng)
        tensors |= {name.removesuffix("weight") + leaf: tensor for leaf, tensor in made.items()}
    plain = load_file(twin / "model.safetensors")
    save_file({**plain, **meant}, twin / "model.safetensors")
    stored.mkdir()
    save_file({name: t.contiguous() for name, t in tensors.items()}, stored / "model.safetensors")
    document = json.loads((twin / "config.json").read_text())
    document["quantization_config"] = quantization_config
    (stored / "config.json").write_text(json.dumps(document))
    return stored, twin


def quantize_in_place(
    folder: Path, quantize: Quantize, quantization_config: dict[str, Any], matrix: re.Pattern[str]
) -> dict[str, torch.Tensor]:
    """Make a checkpoint a quantized one; returns the tensors of its twin. matrix: of the names of
    the tensors to quantize."""
    rng, path = np.random.default_rng(0), folder / "model.safetensors"
    tensors = load_file(path)
    twin = dict(tensors)
    for name in filter(matrix.search, list(tensors)):
        made, twin[name] = quantize(tensors.pop(name), rng)
        tensors |= {name.removesuffix("weight") + leaf: t.contiguous() for leaf, t in made.items()}
    save_file(tensors, path, {"format": "pt"})
    document = json.loads((folder / "config.json").read_text())
    where = document.get("text_config", document)
    where["quantization_config"] = quantization_config
    (folder / "config.json").write_text(json.dumps(document))
    return twin


def restore(folder: Path, twin: dict[str, torch.Tensor]) -> None:
    """Make the checkpoint its twin."""
    save_file(twin, folder / "model.safetensors", {"format": "pt"})
    document = json.loads((folder / "config.json").read_text())
    document.get("text_config", document).pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(document))


def compressed(weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FP8_NUMBERS = {"num_bits": 8, "type": "float", "symmetric": True}
INT4_NUMBERS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
