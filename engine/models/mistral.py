"""Mistral (arXiv 2310.06825): Llama whose layers may all have a window."""

from __future__ import annotations

from dataclasses import replace

from engine.models import config, llama
from engine.models.base import ModelConfig


class ConfigFile(config.ConfigFile, kw_only=True):
    num_key_value_heads: config.Count | None = 8
    max_position_embeddings: config.Count = 4096 * 32
    sliding_window: int | None = 4096

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if self.sliding_window is None:
            return config
        return replace(config, windows=self.windows(self.sliding_window, None))


class ForCausalLM(llama.ForCausalLM):
    pass
