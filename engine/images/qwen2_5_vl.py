"""Pictures of Qwen2.5-VL, which enter it as those of Qwen3-VL do."""

from engine.images.qwen3_vl import Processor

__all__ = ["Processor"]
