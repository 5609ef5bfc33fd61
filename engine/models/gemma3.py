"""Gemma 3, the text model (arXiv 2503.19786): Gemma 2 with head norms in place of soft caps, and
rotary frequencies of their own for the layers with a window."""

from __future__ import annotations

from dataclasses import replace

from engine.layers.rope import RopeConfig
from engine.models import gemma2
from engine.models.base import ModelConfig, place_in_text_model
from engine.models.config import Count, Positive
from engine.vision import Vision

_FULL, _WINDOW = "full_attention", "sliding_attention"


class ConfigFile(gemma2.ConfigFile, kw_only=True):
    # Multimodal checkpoints leave out what equals transformers' defaults.
    vocab_size: Count = 262_208
    hidden_size: Count = 2304
    intermediate_size: Count = 9216
    num_hidden_layers: Count = 26
    num_attention_heads: Count = 8
    max_position_embeddings: Count = 131_072
    rope_theta: Positive = 1_000_000.0
    rope_local_base_freq: Positive = 10_000.0
    attn_logit_softcapping: Positive | None = None
    final_logit_softcapping: Positive | None = None
    sliding_window_pattern: Count = 6
    image_token_index: int = 262_144

    def rope(self) -> RopeConfig:
        nested = (self.rope_parameters or {}).get(_FULL) or {}
        return self.read_rope({**nested, **(self.rope_scaling or {})})

    def adapt(self, config: ModelConfig) -> ModelConfig:
        nested = (self.rope_parameters or {}).get(_WINDOW) or {}
        window_rope = self.read_rope(dict(nested), default_theta=self.rope_local_base_freq)
        # transformers keeps this field but never applies it.
        config = replace(super().adapt(config), attention_softcap=None, qk_norm=True)
        return replace(config, window_rope=window_rope, vision=self.vision())

    def vision(self) -> Vision | None:
        if not self.architectures[0].endswith("ForConditionalGeneration"):
            return None
        why = (
            "not served for Gemma 3, whose image tokens see each other in both directions, which no"
            " attention kernel here does: leave them out"
        )
        return Vision(image_token_id=self.image_token_index, side=1, refusal=why)


class ForCausalLM(gemma2.ForCausalLM):
    def place_of(self, name: str) -> str | None:
        return place_in_text_model(name)
