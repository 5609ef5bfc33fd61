"""Adapters in PEFT's layout, and the checkpoints that they are merged into."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def read_weights(model_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(model_dir / "model.safetensors")


def write_adapter(
    folder: Path,
    model_dir: Path,
    *,
    rank: int = 8,
    targets: tuple[str, ...] = ALL_LINEAR,
    seed: int = 0,
    strength: float = 0.05,
    **fields: Any,
) -> Path:
    """Random, for every module of the text model whose name ends in one of ``targets``."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in read_weights(model_dir).items():
        module = name.removesuffix(".weight")
        if module.split(".")[-1] not in targets or ".experts." in name or "visual." in name:
            continue
        prefix = f"base_model.model.{module}."
        out_features, in_features = weight.shape
        down = torch.randn(rank, in_features, generator=generator)
        up = torch.randn(out_features, rank, generator=generator)
        tensors[prefix + "lora_A.weight"] = down * strength
        tensors[prefix + "lora_B.weight"] = up * strength
    return write_files(folder, tensors, r=rank, target_modules=list(targets), **fields)


def write_files(folder: Path, tensors: Mapping[str, torch.Tensor], **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "some/base",
        "bias": "none",
        "lora_alpha": 32,
        "init_lora_weights": True,
        "lora_dropout": 0.1,
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    return folder


def merge(model_dir: Path, adapter: Path, folder: Path) -> Path:
    """A checkpoint of the sums: W + scaling * B @ A."""
    shutil.copytree(model_dir, folder)
    weights = read_weights(model_dir)
    tensors = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    rank = config["r"]
    scaling = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    for key, down in tensors.items():
        if ".lora_A." in key:
            name = key.removeprefix("base_model.model.").replace(".lora_A.", ".")
            up = tensors[key.replace(".lora_A.", ".lora_B.")]
            weights[name] = (weights[name].double() + scaling * up.double() @ down.double()).float()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
