"""Pictures of Qwen 3.5 and 3.6, which enter them as those of Qwen3-VL do."""

from engine.images.qwen3_vl import Processor

__all__ = ["Processor"]
