"""The encoder of Qwen 3.5 and 3.6: Qwen3-VL's, which gives the layers of the text model nothing."""

from __future__ import annotations

from engine.models.vision import qwen3_vl


class VisionConfig(qwen3_vl.VisionConfig, kw_only=True):
    deepstack_visual_indexes: tuple[int, ...] = ()


class ConfigFile(qwen3_vl.ConfigFile, kw_only=True):
    vision_config: VisionConfig


class Encoder(qwen3_vl.Encoder):
    file_class = ConfigFile
