"""Which scales a KV cache in FP8 has: the checkpoint's, or those measured at start-up, or 1.

FP8 (e4m3) has 15 powers of two at full precision, so a scale need not be exact: it must keep the
largest numbers from being cut off and small ones from vanishing. Measured scales are powers of two,
with which 16-bit copies of what is stored are exact.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.attention.base import KVScales
from engine.attention.select import select_backend
from engine.models.base import Model
from engine.quant.kv_cache import read_kv_scales
from engine.runner.target import Target
from engine.runner.trial import Trial
from kernels.reference import FP8_MAX

_NUM_PROMPTS, _PROMPT_LEN = 4, 128
HEADROOM = 2.0
"""How much larger than measured numbers may be before they are cut off."""


def load_kv_scales(target: Target, model: Model) -> list[KVScales]:
    """The scales of each layer. ``ModelLoadError`` names what is wrong with a checkpoint's own."""
    config, layout, device = target.config, target.facts.cache_layout, target.device
    if config.load_format != "dummy":
        given = read_kv_scales(config.model_dir, layout, device)
        if given is not None:
            return given
    if config.calculate_kv_scales:
        return _measure(target, model)
    ones = torch.ones(layout.num_kv_heads, device=device)
    return [KVScales(ones, ones)] * layout.num_layers


@torch.inference_mode()
def _measure(target: Target, model: Model) -> list[KVScales]:
    """Measure the keys and values of random tokens, always the same ones."""
    config, facts, device = target.config, target.facts, target.device
    unscaled = replace(target.attention_shape, kv_dtype=None)
    attention = select_backend(config.attention_backend, device, unscaled)
    length = min(_PROMPT_LEN, target.asked_len)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(facts.vocab_size, (_NUM_PROMPTS, length), generator=generator)
    trial = Trial(facts, tokens.tolist(), config.block_size, kv_dtype=target.dtype, device=device)
    trial.run(model, attention)
    scales = []
    for keys, values in trial.cache.layers:
        k = scale_of(keys)
        scales.append(KVScales(k, k if values is keys else scale_of(values)))
    return scales


def scale_of(cached: torch.Tensor) -> torch.Tensor:
    """[num_kv_heads] float32, powers of two; cached: [..., num_kv_heads, head_dim]."""
    largest = cached.float().abs().movedim(-2, 0).flatten(1).amax(1)
    exact = (largest * (HEADROOM / FP8_MAX)).clamp_(min=2.0**-100)
    return torch.where(largest > 0, exact.log2().ceil_().exp2_(), 1.0)
