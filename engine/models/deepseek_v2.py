"""DeepSeek V2 (arXiv 2405.04434): latent attention, shared experts, routing limited to groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from engine.layers.mla import LatentAttention, MLAConfig
from engine.layers.moe import RouterConfig
from engine.layers.rope import stretch, yarn_mscale
from engine.models import config, llama
from engine.models.base import ModelConfig, MoEConfig
from engine.models.config import Count
from engine.models.qwen3_moe import MoEDecoderLayer


class ConfigFile(config.ConfigFile, kw_only=True):
    q_lora_rank: Count | None = 1536
    kv_lora_rank: Count = 512
    qk_nope_head_dim: Count = 128
    qk_rope_head_dim: Count = 64
    v_head_dim: Count = 128
    rope_interleave: bool = True
    n_routed_experts: Count = 64
    n_shared_experts: int | None = 2
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count = 1407
    moe_layer_freq: int = 1
    first_k_dense_replace: int = 0
    n_group: Count | None = None
    topk_group: Count | None = None
    topk_method: str = "greedy"
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    norm_topk_prob: bool | None = False
    routed_scaling_factor: float = 1.0

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if self.moe_layer_freq != 1:
            raise ValueError(f"moe_layer_freq: not supported: {self.moe_layer_freq}, only 1")
        mla = MLAConfig(
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            interleaved=self.rope_interleave,
        )
        scale = float(self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5
        all_dim = config.rope.parameters.get("mscale_all_dim")
        if config.rope.scaling != "default" and all_dim:
            scale *= yarn_mscale(stretch(config.rope), float(all_dim)) ** 2
        moe = MoEConfig(
            self.router(),
            self.moe_intermediate_size,
            frozenset(range(self.first_k_dense_replace)),
            self.moe_intermediate_size * (self.n_shared_experts or 0) or None,
        )
        head_dim = self.qk_rope_head_dim
        return replace(config, mla=mla, moe=moe, attention_scale=scale, head_dim=head_dim)

    def router(self) -> RouterConfig:
        if self.topk_method not in ("greedy", "group_limited_greedy"):
            raise ValueError(f"topk_method: not supported: {self.topk_method!r}")
        if self.scoring_func != "softmax":
            raise ValueError(f"scoring_func: not supported: {self.scoring_func!r}, only 'softmax'")
        if self.norm_topk_prob:
            raise ValueError("norm_topk_prob: not supported: True")
        limited = self.topk_method == "group_limited_greedy"
        return RouterConfig(
            num_experts=self.n_routed_experts,
            top_k=self.num_experts_per_tok or 1,
            renormalize=False,
            scale=self.routed_scaling_factor,
            num_groups=self.n_group or 1 if limited else 1,
            top_k_groups=self.topk_group or 1,
            in_float32=True,
        )


class DeepseekDecoderLayer(MoEDecoderLayer):
    def _attention(self, config: ModelConfig, layer: int) -> LatentAttention:
        assert config.mla is not None
        return LatentAttention(
            layer,
            config.mla,
            config.hidden_size,
            config.num_heads,
            scale=config.scale,
            bias=config.attention_bias,
            group=config.group,
            dtype=self._dtype,
            device=self._device,
        )


class ForCausalLM(llama.ForCausalLM):
    layer_class = DeepseekDecoderLayer
