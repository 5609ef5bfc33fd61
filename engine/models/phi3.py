"""Phi-3 and Phi-4 (arXiv 2404.14219, 2412.08905): Llama, its checkpoints fused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from engine.layers.rope import RopeConfig
from engine.models import config, llama
from engine.models.base import ModelConfig


class ConfigFile(config.ConfigFile, kw_only=True):
    rope_scalings: ClassVar[tuple[str, ...]] = ("default", "longrope")

    rms_norm_eps: config.Positive = 1e-5
    max_position_embeddings: config.Count = 4096
    original_max_position_embeddings: int = 4096
    sliding_window: int | None = None

    def read_rope(
        self, parameters: dict[str, Any], *, default_theta: float | None = None
    ) -> RopeConfig:
        # It is listed with the scaling's other parameters; the first checkpoints call the scaling
        # yarn.
        parameters["original_max_position_embeddings"] = self.original_max_position_embeddings
        if "short_factor" in parameters:
            parameters |= {"rope_type": "longrope"}
            parameters.pop("type", None)
        return super().read_rope(parameters, default_theta=default_theta)

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if self.sliding_window is None:
            return config
        return replace(config, windows=self.windows(self.sliding_window, None))


class Phi3DecoderLayer(llama.LlamaDecoderLayer):
    fused_checkpoint = True


class ForCausalLM(llama.ForCausalLM):
    layer_class = Phi3DecoderLayer
