"""Scales of a KV cache in FP8 that a checkpoint brings along.

As compressed-tensors and ModelOpt lay them out: for each layer what its stored keys, and its stored
values, are multiplied with, one number or one for each head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.attention.base import KVScales
from engine.errors import ModelLoadError
from engine.hub import weight_files
from engine.models.base import CacheLayout

_NAME = re.compile(
    r"(?:^|\.)layers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:[kv]_proj|qkv_proj|attn)\.)?(?P<of>k|v|kv)_scale$"
)
"""``self_attn.k_scale``, ``self_attn.k_proj.k_scale``; ``kv_scale`` is for both."""


def read_kv_scales(
    model_dir: Path,
    layout: CacheLayout,
    device: torch.device,
    layers: Sequence[int] | None = None,
) -> list[KVScales] | None:
    """Those of each layer; None where the checkpoint has none at all. layers: the numbers of the
    layers that have keys and values, if not all do.

    ``ModelLoadError`` names one that is missing, misshapen or no positive number.
    """
    found: dict[tuple[int, str], torch.Tensor] = {}
    for path in weight_files(model_dir):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                    place = _NAME.search(name)
                    if place is None:
                        continue
                    scale = _checked(name, file.get_tensor(name), layout)
                    for of in place["of"]:
                        found[int(place["layer"]), of] = scale.to(device)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not found:
        return None
    numbers = range(layout.num_layers) if layers is None else layers
    return [_of_layer(layer, found, layout) for layer in numbers]


def _of_layer(
    layer: int, found: dict[tuple[int, str], torch.Tensor], layout: CacheLayout
) -> KVScales:
    wanted = ("k",) if layout.is_latent else ("k", "v")
    for of in wanted:
        if (layer, of) not in found:
            raise ModelLoadError(
                f"the checkpoint has scales of a KV cache, but no {of}_scale of layer {layer}: "
                "download it again, or set kv_cache_dtype to 'auto'"
            )
    return KVScales(found[layer, "k"], found[layer, wanted[-1]])


def _checked(name: str, scale: torch.Tensor, layout: CacheLayout) -> torch.Tensor:
    """[num_kv_heads] float32, contiguous"""
    if scale.numel() not in (1, layout.num_kv_heads):
        raise ModelLoadError(
            f"tensor {name!r} has {scale.numel()} elements, neither 1 nor one for each of the "
            f"{layout.num_kv_heads} KV heads"
        )
    scale = scale.float().reshape(-1)
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise ModelLoadError(f"tensor {name!r} holds a scale that is no positive number")
    return scale.expand(layout.num_kv_heads).contiguous()
