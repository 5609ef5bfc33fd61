"""Gemma 3's encoder: SigLIP (arXiv 2303.15343) over pictures of one size, and a projector that
averages neighbouring patches to one token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec
import torch

from engine.images.processor import Normalization
from engine.layers.encoder import LayerNorm
from engine.layers.module import Module
from engine.layers.norm import OffsetRMSNorm
from engine.layers.parameter import Weight
from engine.models.vision.base import (
    Attention,
    Count,
    PatchEmbedding,
    PatchReader,
    Pictures,
    Positive,
    Segments,
    TwoProducts,
    VisionEncoder,
    blocked,
    check_activation,
    check_heads,
)


class VisionConfig(msgspec.Struct, kw_only=True):
    """Defaults are those of transformers."""

    hidden_size: Count = 768
    intermediate_size: Count = 3072
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    image_size: Count = 224
    patch_size: Count = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: Positive = 1e-6

    @property
    def grid(self) -> int:
        """Patches of a side."""
        return self.image_size // self.patch_size


class TextConfig(msgspec.Struct, kw_only=True):
    hidden_size: Count = 2304


class ConfigFile(msgspec.Struct, kw_only=True):
    vision_config: VisionConfig
    text_config: TextConfig
    mm_tokens_per_image: Count = 256

    @property
    def merge(self) -> int:
        """Patches of a side of a token."""
        return self.vision_config.grid // math.isqrt(self.mm_tokens_per_image)

    def check(self) -> None:
        vision, side = self.vision_config, math.isqrt(self.mm_tokens_per_image)
        check_activation("vision_config.hidden_act", vision.hidden_act)
        check_heads(vision.hidden_size, vision.num_attention_heads, divisor=1)
        if vision.image_size % vision.patch_size:
            raise ValueError(
                f"vision_config.image_size: {vision.image_size} is no multiple of patch_size"
                f" {vision.patch_size}"
            )
        if side**2 != self.mm_tokens_per_image or vision.grid % side:
            raise ValueError(
                f"mm_tokens_per_image: {self.mm_tokens_per_image} is not the square of a divisor of"
                f" {vision.grid} patches"
            )


class _Attention(Attention):
    names: ClassVar = {"out": "out_proj"}


class _FeedForward(TwoProducts):
    names: ClassVar = {"up": "fc1", "down": "fc2"}


class Layer(Module):
    def __init__(self, config: VisionConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        size, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.layer_norm1 = LayerNorm(size, eps, dtype=dtype, device=device)
        self.layer_norm2 = LayerNorm(size, eps, dtype=dtype, device=device)
        heads = config.num_attention_heads
        self.self_attn = _Attention(size, heads, bias=True, dtype=dtype, device=device)
        self.mlp = _FeedForward((size, inner, size), config.hidden_act, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        x = x + self.self_attn(self.layer_norm1(x), segments)
        return x + self.mlp(self.layer_norm2(x))


class Projector(Module):
    names: ClassVar = {"weight": "mm_input_projection_weight", "norm": "mm_soft_emb_norm"}

    def __init__(self, file: ConfigFile, *, dtype: torch.dtype, device: torch.device) -> None:
        size, eps = file.vision_config.hidden_size, file.vision_config.layer_norm_eps
        self._patches = file.merge**2
        shape = size, file.text_config.hidden_size
        self.weight = Weight.empty(shape, dtype=dtype, device=device)
        self.norm = OffsetRMSNorm(size, eps, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        pooled = x.view(-1, self._patches, x.shape[1]).mean(1)
        return self.norm(pooled) @ self.weight.data


class Encoder(VisionEncoder):
    file_class = ConfigFile
    prefixes = ("model.", "")
    unneeded = ("language_model.", "lm_head.", "vision_tower.head.")
    names: ClassVar = {
        "embed": "vision_tower.embeddings.patch_embedding",
        "position_grid": "vision_tower.embeddings.position_embedding.weight",
        "layers": "vision_tower.encoder.layers",
        "norm": "vision_tower.post_layernorm",
        "projector": "multi_modal_projector",
    }

    def __init__(
        self,
        file: ConfigFile,
        normalization: Normalization,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        config = file.vision_config
        size, side = config.hidden_size, config.patch_size
        self._reader = PatchReader(
            normalization, side=side, merge=file.merge, dtype=dtype, device=device
        )
        self._grid = config.grid
        self.embed = PatchEmbedding(size, (side, side), bias=True, dtype=dtype, device=device)
        self.position_grid = Weight.empty((config.grid**2, size), dtype=dtype, device=device)
        self.layers = [
            Layer(config, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]
        self.norm = LayerNorm(size, config.layer_norm_eps, dtype=dtype, device=device)
        self.projector = Projector(file, dtype=dtype, device=device)

    def place_of(self, name: str) -> str | None:
        return super().place_of(name.replace("vision_tower.vision_model.", "vision_tower."))

    def __call__(self, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pictures = Pictures(images, self._reader)
        positions = self.position_grid.data.view(self._grid, self._grid, -1)
        x = self.embed(pictures.patches)
        x = x + blocked(positions, self._reader.merge).repeat(len(images), 1)
        for layer in self.layers:
            x = layer(x, pictures.segments)
        return pictures.split(self.projector(self.norm(x)))
