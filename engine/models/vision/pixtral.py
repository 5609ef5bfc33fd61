"""Pixtral's encoder (arXiv 2410.07073) with Mistral 3's projector, which makes neighbouring patches
one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import torch

from engine.images.processor import Normalization
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.norm import RMSNorm
from engine.models.vision.base import (
    Attention,
    Count,
    GatedFeedForward,
    PatchEmbedding,
    PatchReader,
    Pictures,
    Positive,
    Rotation,
    Segments,
    TwoProducts,
    VisionEncoder,
    check_activation,
    check_heads,
    frequencies,
)

_EPS = 1e-5


class VisionConfig(msgspec.Struct, kw_only=True):
    """Defaults are those of transformers."""

    hidden_size: Count = 1024
    intermediate_size: Count = 4096
    num_hidden_layers: Count = 24
    num_attention_heads: Count = 16
    patch_size: Count = 16
    hidden_act: str = "gelu"
    rope_theta: Positive | None = None
    rope_parameters: dict[str, Any] | None = None

    @property
    def theta(self) -> float:
        theta = (self.rope_parameters or {}).get("rope_theta", self.rope_theta)
        return 10000.0 if theta is None else float(theta)


class TextConfig(msgspec.Struct, kw_only=True):
    hidden_size: Count
    rms_norm_eps: Positive = 1e-6


class ConfigFile(msgspec.Struct, kw_only=True):
    vision_config: VisionConfig
    text_config: TextConfig
    spatial_merge_size: Count = 2
    projector_hidden_act: str = "gelu"
    multimodal_projector_bias: bool = False
    vision_feature_layer: int | list[int] = -1

    def check(self) -> None:
        vision = self.vision_config
        check_activation("vision_config.hidden_act", vision.hidden_act)
        check_activation("projector_hidden_act", self.projector_hidden_act)
        check_heads(vision.hidden_size, vision.num_attention_heads)
        if self.vision_feature_layer != -1:
            raise ValueError(
                f"vision_feature_layer: {self.vision_feature_layer} is not supported, only -1"
            )


class _Attention(Attention):
    names: ClassVar = {"out": "o_proj"}


class Layer(Module):
    names: ClassVar = {"attn": "attention", "mlp": "feed_forward"}

    def __init__(self, config: VisionConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        size = config.hidden_size
        self.attention_norm = RMSNorm(size, _EPS, dtype=dtype, device=device)
        self.ffn_norm = RMSNorm(size, _EPS, dtype=dtype, device=device)
        heads = config.num_attention_heads
        self.attn = _Attention(size, heads, bias=False, dtype=dtype, device=device)
        self.mlp = GatedFeedForward(
            size,
            config.intermediate_size,
            config.hidden_act,
            bias=False,
            dtype=dtype,
            device=device,
        )

    def __call__(self, x: torch.Tensor, segments: Segments, rotation: Rotation) -> torch.Tensor:
        x = x + self.attn(self.attention_norm(x), segments, rotation)
        return x + self.mlp(self.ffn_norm(x))


class Projector(TwoProducts):
    names: ClassVar = {
        "up": "linear_1",
        "down": "linear_2",
        "merge": "patch_merger.merging_layer",
    }

    def __init__(self, file: ConfigFile, *, dtype: torch.dtype, device: torch.device) -> None:
        size, out = file.vision_config.hidden_size, file.text_config.hidden_size
        super().__init__(
            (size, out, out),
            file.projector_hidden_act,
            bias=file.multimodal_projector_bias,
            dtype=dtype,
            device=device,
        )
        self._patches = file.spatial_merge_size**2
        self.norm = RMSNorm(size, file.text_config.rms_norm_eps, dtype=dtype, device=device)
        merged = size * self._patches
        self.merge = Linear(merged, {"": size}, bias=False, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        squares = self.norm(x).view(-1, self._patches, x.shape[1])
        # The patches of a square are neighbours in each channel, not the other way round.
        return super().__call__(self.merge(squares.transpose(1, 2).flatten(1)))


class Encoder(VisionEncoder):
    file_class = ConfigFile
    prefixes = ("model.", "")
    unneeded = ("language_model.", "lm_head.")
    names: ClassVar = {
        "embed": "vision_tower.patch_conv",
        "norm": "vision_tower.ln_pre",
        "layers": "vision_tower.transformer.layers",
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
            normalization, side=side, merge=file.spatial_merge_size, dtype=dtype, device=device
        )
        turns = frequencies(config.theta, size // config.num_attention_heads).to(device)
        self._frequencies = turns[0::2], turns[1::2]
        self.embed = PatchEmbedding(size, (side, side), bias=False, dtype=dtype, device=device)
        self.norm = RMSNorm(size, _EPS, dtype=dtype, device=device)
        self.layers = [
            Layer(config, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]
        self.projector = Projector(file, dtype=dtype, device=device)

    def __call__(self, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pictures = Pictures(images, self._reader)
        rotation = Rotation(*pictures.positions(), *self._frequencies)
        x = self.norm(self.embed(pictures.patches))
        for layer in self.layers:
            x = layer(x, pictures.segments, rotation)
        return pictures.split(self.projector(x))
