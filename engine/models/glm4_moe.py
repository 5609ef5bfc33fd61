"""GLM-4.5 (arXiv 2508.06471): DeepSeek V3's experts behind grouped-query attention, half of each
head rotated.

The layers for predicting several tokens, which checkpoints hold after the decoder's own, are not
loaded.
"""

from __future__ import annotations

from dataclasses import replace

from engine.layers.moe import RouterConfig
from engine.models import config, llama
from engine.models.base import ModelConfig, MoEConfig
from engine.models.config import Count, Positive
from engine.models.deepseek_v3 import place_in_decoder
from engine.models.qwen3_moe import MoEDecoderLayer


class ConfigFile(config.ConfigFile, kw_only=True):
    max_position_embeddings: Count = 131_072
    rms_norm_eps: Positive = 1e-5
    partial_rotary_factor: float = 0.5
    use_qk_norm: bool = False
    n_routed_experts: Count = 128
    n_shared_experts: int = 1
    num_experts_per_tok: Count = 8
    moe_intermediate_size: Count = 1408
    first_k_dense_replace: int = 1
    n_group: Count = 1
    topk_group: Count = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    def adapt(self, config: ModelConfig) -> ModelConfig:
        router = RouterConfig(
            num_experts=self.n_routed_experts,
            top_k=self.num_experts_per_tok,
            scoring="sigmoid",
            renormalize=self.norm_topk_prob,
            scale=self.routed_scaling_factor,
            num_groups=self.n_group,
            top_k_groups=self.topk_group,
            has_bias=True,
            in_float32=True,
        )
        moe = MoEConfig(
            router,
            self.moe_intermediate_size,
            frozenset(range(self.first_k_dense_replace)),
            self.moe_intermediate_size * self.n_shared_experts or None,
        )
        return replace(config, moe=moe, attention_output_bias=False, qk_norm=self.use_qk_norm)


class ForCausalLM(llama.ForCausalLM):
    layer_class = MoEDecoderLayer

    def place_of(self, name: str) -> str | None:
        return place_in_decoder(name, self.num_layers)
