"""Ministral 3 (arXiv 2601.08584): Mistral whose queries grow with their position."""

from __future__ import annotations

from dataclasses import replace

from engine.layers.attention import QueryGrowth
from engine.layers.rope import RopeConfig
from engine.models import config, llama
from engine.models.base import ModelConfig, place_in_text_model
from engine.models.config import Count, Positive

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16_384,
    "llama_4_scaling_beta": 0.1,
}
_GROWTH = "llama_4_scaling_beta", "original_max_position_embeddings"


class ConfigFile(config.ConfigFile, kw_only=True):
    num_key_value_heads: Count | None = 8
    head_dim: Count | None = 128
    rms_norm_eps: Positive = 1e-5
    max_position_embeddings: Count = 262_144
    sliding_window: int | None = None

    def rope(self) -> RopeConfig:
        parameters = dict(self.rope_parameters or self.rope_scaling or _ROPE)
        parameters.pop("max_position_embeddings", None)  # repeated there
        return self.read_rope(parameters)

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if self.sliding_window is not None:
            config = replace(config, windows=self.windows(self.sliding_window, None))
        return with_growth(config)


def with_growth(config: ModelConfig) -> ModelConfig:
    """With the growth of queries that the parameters of the rotation name, if they do."""
    beta, every = (config.rope.parameters.get(name) for name in _GROWTH)
    if not (beta and every):
        return config
    return replace(config, query_growth=QueryGrowth(float(beta), float(every)))


class ForCausalLM(llama.ForCausalLM):
    def place_of(self, name: str) -> str | None:
        return place_in_text_model(name)
