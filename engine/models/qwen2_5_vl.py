"""Qwen2.5-VL (arXiv 2502.13923): Qwen 2.5 that sees, with rotation by rows and columns of
pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from engine.layers.rope import RopeConfig
from engine.layers.vision import RotarySections
from engine.models import llama, qwen2
from engine.models.base import ModelConfig, place_in_text_model
from engine.models.config import Count, Positive
from engine.vision import Vision


class VisionFields(msgspec.Struct):
    """Those that the text model depends on."""

    patch_size: Count = 14
    spatial_merge_size: Count = 2
    deepstack_visual_indexes: tuple[int, ...] = ()

    def vision(self, image_token_id: int) -> Vision:
        return Vision(
            image_token_id=image_token_id,
            side=self.patch_size * self.spatial_merge_size,
            num_deepstack=len(self.deepstack_visual_indexes),
            rotates_by_grid=True,
        )


class ConfigFile(qwen2.ConfigFile, kw_only=True):
    num_key_value_heads: Count | None = 8
    rms_norm_eps: Positive = 1e-5
    rope_theta: Positive = 1e6
    max_window_layers: int = 80
    image_token_id: int = 151_655
    vision_config: VisionFields = msgspec.field(default_factory=VisionFields)

    def rope(self) -> RopeConfig:
        return read_rope(self)

    def adapt(self, config: ModelConfig) -> ModelConfig:
        return replace(
            super().adapt(config),
            rotary_sections=sections(config, [16, 24, 24], interleaved=False),
            vision=self.vision_config.vision(self.image_token_id),
        )


def read_rope(file: qwen2.ConfigFile) -> RopeConfig:
    """The rotary embedding, whose type the first checkpoints call ``mrope``."""
    parameters = dict(file.rope_parameters or file.rope_scaling or {})
    for name in ("rope_type", "type"):
        if parameters.get(name) == "mrope":
            del parameters[name]
    return file.read_rope(parameters)


def sections(config: ModelConfig, default: list[int], *, interleaved: bool) -> RotarySections:
    """From the parameters of the rotation. Raises ``ValueError``."""
    sizes: Any = config.rope.parameters.get("mrope_section") or default
    pairs = int(config.head_dim * config.rope.rotary_fraction) // 2
    if not isinstance(sizes, list) or len(sizes) != 3 or sum(sizes) != pairs:
        raise ValueError(f"mrope_section: must be three numbers of sum {pairs}, got {sizes!r}")
    return RotarySections((sizes[0], sizes[1], sizes[2]), interleaved=interleaved)


class ForCausalLM(llama.ForCausalLM):
    def place_of(self, name: str) -> str | None:
        return place_in_text_model(name)
