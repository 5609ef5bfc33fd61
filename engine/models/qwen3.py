"""Qwen 3 (arXiv 2505.09388): Qwen 2 with norms of every query and key head in place of biases."""

from __future__ import annotations

from dataclasses import replace

from engine.models import llama, qwen2
from engine.models.base import ModelConfig
from engine.models.config import Count


class ConfigFile(qwen2.ConfigFile, kw_only=True):
    head_dim: Count | None = 128

    def adapt(self, config: ModelConfig) -> ModelConfig:
        return replace(config, windows=self.layer_windows(), qk_norm=True)


ForCausalLM = llama.ForCausalLM
