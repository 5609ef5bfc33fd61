"""DeepSeek V3 and R1 (arXiv 2412.19437): V2 with sigmoid scores and a bias that balances experts.

The layers for predicting several tokens, which checkpoints hold after the decoder's own, are not
loaded.
"""

from __future__ import annotations

import re
from typing import Literal

from engine.layers.moe import RouterConfig
from engine.models import deepseek_v2
from engine.models.config import Count


class ConfigFile(deepseek_v2.ConfigFile, kw_only=True):
    max_position_embeddings: Count = 4096
    n_routed_experts: Count = 256
    n_shared_experts: int | None = 1
    num_experts_per_tok: Count | None = 8
    moe_intermediate_size: Count = 2048
    first_k_dense_replace: int = 3
    n_group: Count | None = 8
    topk_group: Count | None = 4
    topk_method: str = "noaux_tc"
    scoring_func: Literal["softmax", "sigmoid"] = "sigmoid"
    norm_topk_prob: bool | None = True
    routed_scaling_factor: float = 2.5

    def router(self) -> RouterConfig:
        for name, only in (("topk_method", "noaux_tc"), ("scoring_func", "sigmoid")):
            if getattr(self, name) != only:
                raise ValueError(f"{name}: not supported: {getattr(self, name)!r}, only {only!r}")
        return RouterConfig(
            num_experts=self.n_routed_experts,
            top_k=self.num_experts_per_tok or 1,
            scoring="sigmoid",
            renormalize=bool(self.norm_topk_prob),
            scale=self.routed_scaling_factor,
            num_groups=self.n_group or 1,
            top_k_groups=self.topk_group or 1,
            has_bias=True,
            in_float32=True,
        )


class ForCausalLM(deepseek_v2.ForCausalLM):
    def place_of(self, name: str) -> str | None:
        return place_in_decoder(name, self.num_layers)


def place_in_decoder(name: str, num_layers: int) -> str | None:
    """``name``, or None for a tensor of the layers that follow the decoder's ``num_layers``."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    return None if layer and int(layer[1]) >= num_layers else name
