"""Qwen 3.5 and 3.6 with mixtures of experts (Qwen, 2026)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from engine.models import qwen3_5, qwen3_next
from engine.models.base import ModelConfig
from engine.models.config import Count


class ConfigFile(qwen3_next.ConfigFile, kw_only=True):
    interleaved: ClassVar[bool] = False

    intermediate_size: Count = 1
    """Of dense layers, of which there are none."""
    num_experts: Count = 256
    num_experts_per_tok: Count = 8
    norm_topk_prob: bool = True
    image_token_id: int = 248_056
    vision_config: qwen3_5.VisionFile = msgspec.field(default_factory=qwen3_5.VisionFile)

    def adapt(self, config: ModelConfig) -> ModelConfig:
        return qwen3_5.seeing(super().adapt(config), self.vision_config, self.image_token_id)


ForCausalLM = qwen3_next.ForCausalLM
