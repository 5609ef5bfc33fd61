"""Qwen 3 MoE (arXiv 2505.09388): Qwen 3 with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from engine.layers.moe import RouterConfig, SparseMoE
from engine.models import llama, qwen3
from engine.models.base import ModelConfig, MoEConfig
from engine.models.config import Count


def dense_layers(num_layers: int, sparse_step: int, named: list[int] | None) -> frozenset[int]:
    """The layers without experts: those that are named, and all but every ``sparse_step``-th."""
    return frozenset(i for i in range(num_layers) if i in (named or ()) or (i + 1) % sparse_step)


class ConfigFile(qwen3.ConfigFile, kw_only=True):
    num_key_value_heads: Count | None = 4
    head_dim: Count | None = None
    num_experts: Count = 128
    num_local_experts: Count | None = None
    """transformers 5's name for ``num_experts``."""
    num_experts_per_tok: Count = 8
    moe_intermediate_size: Count = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: Count = 1
    mlp_only_layers: list[int] | None = None

    def adapt(self, config: ModelConfig) -> ModelConfig:
        router = RouterConfig(
            num_experts=self.num_local_experts or self.num_experts,
            top_k=self.num_experts_per_tok,
            renormalize=self.norm_topk_prob,
        )
        dense = dense_layers(self.num_hidden_layers, self.decoder_sparse_step, self.mlp_only_layers)
        windows: tuple[int | None, ...] = ()
        if self.use_sliding_window:
            windows = self.windows(self.sliding_window, self.layer_types)
        return replace(
            config,
            windows=windows,
            qk_norm=True,
            moe=MoEConfig(router, self.moe_intermediate_size, dense),
        )


class MoEDecoderLayer(llama.LlamaDecoderLayer):
    """For any family whose mixture of experts is named ``mlp``."""

    def _add_feed_forward(self, config: ModelConfig, layer: int) -> None:
        assert config.moe is not None
        if layer in config.moe.dense_layers:
            super()._add_feed_forward(config, layer)
            return
        self.mlp = SparseMoE(
            config.moe.router,
            config.hidden_size,
            config.moe.intermediate_size,
            shared_size=config.moe.shared_size,
            group=config.group,
            dtype=self._dtype,
            device=self._device,
        )


class ForCausalLM(llama.ForCausalLM):
    layer_class = MoEDecoderLayer
