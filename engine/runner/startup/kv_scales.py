"""The scales of a KV cache in FP8: the checkpoint's, or measured at start-up, or 1.

FP8 (e4m3) has full precision over 15 powers of two. So a scale need not be exact; it must only
prevent that large numbers are clamped and small ones become 0. Measured scales are powers of two:
with these, 16-bit copies of the stored numbers are exact."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.attention.base import KVScales
from engine.attention.select import select_backend
from engine.executors.base import Executor
from engine.models.base import ModelConfig
from engine.models.sharding import kv_heads_of_rank
from engine.quant.kv_cache import read_kv_scales
from engine.runner.startup.model import read_facts
from engine.runner.startup.target import Target
from engine.runner.startup.trial import Trial
from kernels.reference import FP8_MAX

_NUM_PROMPTS, _PROMPT_LEN = 4, 128
HEADROOM = 2.0
"""Numbers may be this many times as large as measured before they are clamped."""


def load_kv_scales(target: Target, executor: Executor) -> list[KVScales]:
    """The scales of each layer. Raises ``ModelLoadError`` if the checkpoint's own are wrong."""
    config, layout, device = target.config, target.facts.cache_layout, target.device
    if config.load_format != "dummy":
        facts = read_facts(config)
        whole = facts.cache_layout
        layers = facts.attention_layers if isinstance(facts, ModelConfig) else None
        given = read_kv_scales(config.model_dir, whole, device, layers)
        if given is not None:
            if layout.is_latent:
                return given
            heads = kv_heads_of_rank(whole.num_kv_heads, target.stage.group)
            return [KVScales(scales.k[heads], scales.v[heads]) for scales in given]
    if config.calculate_kv_scales:
        return _measure(target, executor)
    ones = torch.ones(layout.num_kv_heads, device=device)
    return [KVScales(ones, ones)] * layout.num_layers


@torch.inference_mode()
def _measure(target: Target, executor: Executor) -> list[KVScales]:
    """Measure the keys and values of random tokens, which are the same at each start."""
    config, facts, device = target.config, target.facts, target.device
    unscaled = replace(target.attention_shape, kv_dtype=None)
    attention = select_backend(config.attention_backend, device, unscaled)
    length = min(_PROMPT_LEN, target.asked_len)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(facts.vocab_size, (_NUM_PROMPTS, length), generator=generator)
    dtypes = {"dtype": target.dtype, "kv_dtype": target.dtype}
    trial = Trial(facts, tokens.tolist(), config.block_size, **dtypes, device=device)
    trial.run(executor, attention)
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
