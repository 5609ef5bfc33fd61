"""Qwen3-VL (arXiv 2511.21631): Qwen 3 that sees. Unlike Qwen2.5-VL, the axes of the rotation are
interleaved, and states of the encoder's layers are added behind the first layers."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from engine.layers.rope import RopeConfig
from engine.models import qwen2_5_vl, qwen3
from engine.models.base import ModelConfig
from engine.models.config import Count, Positive
from engine.models.qwen2_5_vl import read_rope, sections


class VisionFields(qwen2_5_vl.VisionFields):
    patch_size: Count = 16
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)


class ConfigFile(qwen3.ConfigFile, kw_only=True):
    num_key_value_heads: Count | None = 32
    max_position_embeddings: Count = 128_000
    rope_theta: Positive = 500_000.0
    image_token_id: int = 151_655
    vision_config: VisionFields = msgspec.field(default_factory=VisionFields)

    def rope(self) -> RopeConfig:
        return read_rope(self)

    def adapt(self, config: ModelConfig) -> ModelConfig:
        vision = self.vision_config.vision(self.image_token_id)
        if vision.num_deepstack >= self.num_hidden_layers:
            raise ValueError(
                f"vision_config.deepstack_visual_indexes: {vision.num_deepstack} need more than"
                f" {self.num_hidden_layers} layers of the text model"
            )
        rotary_sections = sections(config, [24, 20, 20], interleaved=True)
        return replace(super().adapt(config), rotary_sections=rotary_sections, vision=vision)


ForCausalLM = qwen2_5_vl.ForCausalLM
