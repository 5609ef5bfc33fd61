"""Mistral Small 3.1 and later, Ministral 3: the text model of checkpoints that see."""

from __future__ import annotations

from engine.models import ministral3, mistral
from engine.models.base import ModelConfig


class ConfigFile(mistral.ConfigFile, kw_only=True):
    def adapt(self, config: ModelConfig) -> ModelConfig:
        return ministral3.with_growth(super().adapt(config))


ForCausalLM = ministral3.ForCausalLM
