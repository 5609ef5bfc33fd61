"""Qwen 3.5 and 3.6 with mixtures of experts, the text model (Qwen, 2026)."""

from __future__ import annotations

from typing import ClassVar

from engine.models import qwen3_next
from engine.models.config import Count


class ConfigFile(qwen3_next.ConfigFile, kw_only=True):
    interleaved: ClassVar[bool] = False

    intermediate_size: Count = 1
    """Of dense layers, of which there are none."""
    num_experts: Count = 256
    num_experts_per_tok: Count = 8
    norm_topk_prob: bool = True


ForCausalLM = qwen3_next.ForCausalLM
