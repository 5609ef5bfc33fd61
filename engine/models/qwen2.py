"""Qwen 2 and 2.5 (arXiv 2407.10671, 2412.15115): Llama with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from engine.models import config, llama
from engine.models.base import ModelConfig


class ConfigFile(config.ConfigFile, kw_only=True):
    num_key_value_heads: config.Count | None = 32
    max_position_embeddings: config.Count = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    def adapt(self, config: ModelConfig) -> ModelConfig:
        config = replace(config, attention_bias=True, attention_output_bias=False)
        return replace(config, windows=self.layer_windows())

    def layer_windows(self) -> tuple[int | None, ...]:
        if not self.use_sliding_window or self.sliding_window is None:
            return ()
        types = self.layer_types or [
            "sliding_attention" if i >= self.max_window_layers else "full_attention"
            for i in range(self.num_hidden_layers)
        ]
        return self.windows(self.sliding_window, types)


class ForCausalLM(llama.ForCausalLM):
    pass
