"""Qwen 3.5 and 3.6, dense (Qwen, 2026): Qwen3-Next without experts, and with each projection of the
delta networks by itself in the checkpoint. They see by Qwen3-VL's encoder."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from engine.models import qwen3_next
from engine.models.base import ModelConfig
from engine.models.config import Count
from engine.models.qwen2_5_vl import sections
from engine.models.qwen3_vl import VisionFields


class VisionFile(VisionFields):
    deepstack_visual_indexes: tuple[int, ...] = ()


class ConfigFile(qwen3_next.DenseConfigFile, kw_only=True):
    num_key_value_heads: Count | None = 4
    image_token_id: int = 248_056
    vision_config: VisionFile = msgspec.field(default_factory=VisionFile)

    def adapt(self, config: ModelConfig) -> ModelConfig:
        return seeing(super().adapt(config), self.vision_config, self.image_token_id)


def seeing(config: ModelConfig, vision: VisionFile, image_token_id: int) -> ModelConfig:
    """``config`` with what it says of pictures, if it is not of the text model by itself."""
    if not config.architecture.endswith("ForConditionalGeneration"):
        return config
    return replace(
        config,
        rotary_sections=sections(config, [11, 11, 10], interleaved=True),
        vision=vision.vision(image_token_id),
    )


ForCausalLM = qwen3_next.ForCausalLM
