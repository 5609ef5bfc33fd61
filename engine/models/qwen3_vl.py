"""Qwen3-VL (arXiv 2511.21631): Qwen 3 that sees. Rotation by rows and columns of pictures, whose
axes are interleaved; states of the encoder's layers are added behind the first layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from engine.layers.vision import RotarySections
from engine.models import qwen3
from engine.models.base import ModelConfig, place_in_text_model
from engine.models.config import Count
from engine.models.llama import ForCausalLM as TextModel
from engine.vision import Vision


class VisionFields(msgspec.Struct):
    """Those that the text model depends on."""

    patch_size: Count = 16
    spatial_merge_size: Count = 2
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)


class ConfigFile(qwen3.ConfigFile, kw_only=True):
    num_key_value_heads: Count | None = 32
    max_position_embeddings: Count = 128_000
    rope_theta: float = 500_000.0
    image_token_id: int = 151_655
    vision_config: VisionFields = msgspec.field(default_factory=VisionFields)

    def adapt(self, config: ModelConfig) -> ModelConfig:
        vision = self.vision_config
        num_deepstack = len(vision.deepstack_visual_indexes)
        if num_deepstack >= self.num_hidden_layers:
            raise ValueError(
                f"vision_config.deepstack_visual_indexes: {num_deepstack} need more than"
                f" {self.num_hidden_layers} layers of the text model"
            )
        return replace(
            super().adapt(config),
            rotary_sections=sections(config, [24, 20, 20], interleaved=True),
            vision=Vision(
                image_token_id=self.image_token_id,
                side=vision.patch_size * vision.spatial_merge_size,
                num_deepstack=num_deepstack,
                rotates_by_grid=True,
            ),
        )


def sections(config: ModelConfig, default: list[int], *, interleaved: bool) -> RotarySections:
    """From the parameters of the rotation. Raises ``ValueError``."""
    sizes: Any = config.rope.parameters.get("mrope_section") or default
    pairs = config.head_dim // 2
    if not isinstance(sizes, list) or len(sizes) != 3 or sum(sizes) != pairs:
        raise ValueError(f"mrope_section: must be three numbers of sum {pairs}, got {sizes!r}")
    return RotarySections((sizes[0], sizes[1], sizes[2]), interleaved=interleaved)


class ForCausalLM(TextModel):
    def place_of(self, name: str) -> str | None:
        return place_in_text_model(name)
