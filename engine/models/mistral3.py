"""Mistral Small 3.1 and later, Ministral 3: Mistral's text models with Pixtral's encoder."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from engine.models import ministral3, mistral
from engine.models.base import ModelConfig
from engine.models.config import Count
from engine.vision import Vision


class VisionFields(msgspec.Struct):
    """Those that the text model depends on."""

    patch_size: Count = 14
    image_size: Count = 1540


class ConfigFile(mistral.ConfigFile, kw_only=True):
    image_token_index: int = 10
    spatial_merge_size: Count = 2
    vision_config: VisionFields = msgspec.field(default_factory=VisionFields)

    def adapt(self, config: ModelConfig) -> ModelConfig:
        vision = Vision(
            image_token_id=self.image_token_index,
            side=self.vision_config.patch_size * self.spatial_merge_size,
            max_size=self.vision_config.image_size,
        )
        return replace(ministral3.with_growth(super().adapt(config)), vision=vision)


ForCausalLM = ministral3.ForCausalLM
