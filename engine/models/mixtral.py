"""Mixtral (arXiv 2401.04088): Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from engine.layers.moe import RouterConfig, SparseMoE
from engine.models import llama, mistral
from engine.models.base import ModelConfig, MoEConfig
from engine.models.config import Count, Positive
from engine.parallel.group import Output
from kernels.rounded import Activations


class ConfigFile(mistral.ConfigFile, kw_only=True):
    rms_norm_eps: Positive = 1e-5
    rope_theta: Positive = 1_000_000.0
    sliding_window: int | None = None
    num_local_experts: Count = 8
    num_experts_per_tok: Count = 2

    def adapt(self, config: ModelConfig) -> ModelConfig:
        router = RouterConfig(
            num_experts=self.num_local_experts,
            top_k=self.num_experts_per_tok,
            renormalize=True,
        )
        moe = MoEConfig(router, config.intermediate_size)
        return replace(super().adapt(config), moe=moe)


class MixtralDecoderLayer(llama.LlamaDecoderLayer):
    def _add_feed_forward(self, config: ModelConfig, layer: int) -> None:
        assert config.moe is not None
        self.block_sparse_moe = SparseMoE(
            config.moe.router,
            config.hidden_size,
            config.moe.intermediate_size,
            names=("w1", "w3", "w2"),
            group=config.group,
            dtype=self._dtype,
            device=self._device,
        )

    @property
    def feed_forward_reader(self) -> None:
        return None

    def feed_forward(self, x: Activations) -> Output:
        return self.block_sparse_moe(x)


class ForCausalLM(llama.ForCausalLM):
    layer_class = MixtralDecoderLayer
