"""gpt-oss (arXiv 2508.10925): attention sinks, windows in every other layer, experts in MXFP4."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.layers.module import Module
from engine.layers.moe import Router, RouterConfig
from engine.layers.rope import RopeConfig
from engine.layers.stacked_experts import StackedExperts
from engine.models import config, llama
from engine.models.base import ModelConfig, MoEConfig
from engine.models.config import Count, Positive
from engine.parallel.group import ALONE, Output
from kernels.rounded import Activations

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class ConfigFile(config.ConfigFile, kw_only=True):
    head_dim: Count | None = 64
    rms_norm_eps: Positive = 1e-5
    rope_theta: Positive = 150_000.0
    max_position_embeddings: Count = 131_072
    attention_bias: bool = True
    sliding_window: int | None = 128
    layer_types: list[str] | None = None
    num_local_experts: Count = 128
    num_experts_per_tok: Count = 4
    swiglu_alpha: Positive = 1.702
    swiglu_limit: Positive = 7.0

    def rope(self) -> RopeConfig:
        return self.read_rope(dict(self.rope_parameters or self.rope_scaling or _YARN))

    def adapt(self, config: ModelConfig) -> ModelConfig:
        types = self.layer_types or [
            "full_attention" if i % 2 else "sliding_attention"
            for i in range(self.num_hidden_layers)
        ]
        router = RouterConfig(
            num_experts=self.num_local_experts,
            top_k=self.num_experts_per_tok,
            renormalize=True,
            projection_bias=True,
        )
        swiglu = self.swiglu_alpha, self.swiglu_limit
        moe = MoEConfig(router, config.intermediate_size, swiglu=swiglu)
        windows = self.windows(self.sliding_window, types)
        return replace(config, windows=windows, moe=moe, attention_sinks=True)


class MLP(Module):
    """A router, and the experts that it picks for each token."""

    reader = None

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        moe = config.moe
        assert moe is not None
        assert moe.swiglu is not None
        self._group = config.group
        self.router = Router(moe.router, config.hidden_size, dtype=dtype, device=device)
        self.experts = StackedExperts(
            len(moe.router.local),
            config.hidden_size,
            moe.intermediate_size,
            swiglu=moe.swiglu,
            group=ALONE if moe.router.among.size > 1 else config.group,
            dtype=dtype,
            device=device,
        )

    def __call__(self, x: Activations) -> Output:
        assert isinstance(x, torch.Tensor), "rounded for nobody"
        return self._group.output(self.experts(x, *self.router(x)))


class GptOssDecoderLayer(llama.LlamaDecoderLayer):
    def _add_feed_forward(self, config: ModelConfig, layer: int) -> None:
        self.mlp = MLP(config, dtype=self._dtype, device=self._device)


class ForCausalLM(llama.ForCausalLM):
    layer_class = GptOssDecoderLayer
