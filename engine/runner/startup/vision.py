"""Loads the encoder of a model that sees, and lays out the memory of what it makes."""

from __future__ import annotations

import math

import msgspec
import torch

from engine.config import EngineConfig
from engine.images.load import load_processor
from engine.models.base import ModelConfig
from engine.models.vision.create import create_encoder
from engine.runner.pictures import PictureRows
from engine.runner.startup.target import Target
from engine.vision import BLOCK_ROWS, Vision
from engine.weights.dummy import draw_weights
from engine.weights.load import load_weights

GPU_CACHE_BYTES = 1 << 30
_CPU_CACHE_BYTES = 256 << 20
_PROCESSOR_FILES = "preprocessor_config.json", "processor_config.json"


def vision_of(target: Target) -> Vision | None:
    """How the model sees, with a reason where its pictures are refused; None if it does not."""
    vision = target.facts.vision
    if vision is None:
        return None
    if why := refusal(vision, target.config):
        return msgspec.structs.replace(vision, refusal=why)
    processor = load_processor(target.config.model_dir)
    assert processor is not None, f"{target.facts.architecture} sees, but has no processor"
    return msgspec.structs.replace(
        vision,
        num_blocks=max(1, _cache_bytes(target) // (BLOCK_ROWS * _row_bytes(target))),
        largest=processor.most_image_tokens,
    )


def refusal(vision: Vision, config: EngineConfig) -> str:
    """Why no pictures are served; empty if they are."""
    if vision.refusal:
        return vision.refusal
    if config.pipeline_parallel_size > 1:
        return "not served with pipeline_parallel_size above 1: leave them out"
    if not any((config.model_dir / name).exists() for name in _PROCESSOR_FILES):
        return f"the model's folder has no {_PROCESSOR_FILES[0]}: leave them out, or add it"
    return ""


def encoder_bytes(config: EngineConfig, vision: Vision | None, dtype: torch.dtype) -> int:
    """Of its weights. Raises ``ModelLoadError``."""
    if vision is None or refusal(vision, config):
        return 0
    encoder = create_encoder(config.model_dir, dtype=dtype, device=torch.device("meta"))
    if encoder is None:
        return 0
    return sum(weight.data.nbytes for _, weight in encoder.named_weights())


def load_pictures(target: Target, vision: Vision) -> PictureRows:
    """vision: from ``vision_of``, without a reason. Raises ``ModelLoadError``."""
    config, device = target.config, target.device
    encoder = create_encoder(config.model_dir, dtype=target.dtype, device=device)
    assert encoder is not None, f"{target.facts.architecture} sees, but has no encoder"
    with torch.inference_mode():
        if config.load_format == "dummy":
            draw_weights(encoder, seed=config.seed)
        else:
            load_weights(encoder, config.model_dir, tied=False, place_of=encoder.place_of)
        encoder.pack()
    width = _row_bytes(target) // target.dtype.itemsize
    return PictureRows(encoder, vision, width, config.num_seqs, dtype=target.dtype, device=device)


def _row_bytes(target: Target) -> int:
    """Of what the encoder makes of an image token."""
    facts = target.facts
    assert isinstance(facts, ModelConfig)
    assert facts.vision is not None
    return facts.hidden_size * (1 + facts.vision.num_deepstack) * target.dtype.itemsize


def _cache_bytes(target: Target) -> int:
    given = target.config.image_cache_bytes
    if given is not None:
        return given
    return GPU_CACHE_BYTES if target.device.type == "cuda" else _CPU_CACHE_BYTES


def step_bytes(pictures: PictureRows, config: EngineConfig) -> int:
    """GPU memory that encoding takes: of as many of the largest pictures, squares, as a step
    encodes."""
    vision, device = pictures.vision, pictures.device
    num_pictures = max(1, config.image_tokens // vision.most_tokens)
    side = math.isqrt(vision.most_tokens) * vision.side
    side = min(side, vision.max_size or side) // vision.side * vision.side
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    picture = torch.zeros(side, side, 3, dtype=torch.uint8, device=device)
    pictures.encode([picture] * num_pictures)
    return torch.cuda.max_memory_allocated(device) - before
