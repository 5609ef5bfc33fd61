"""Qwen 3.5 and 3.6, dense, the text model (Qwen, 2026): Qwen3-Next without experts, and with each
projection of the delta networks by itself in the checkpoint."""

from __future__ import annotations

from engine.models import qwen3_next
from engine.models.config import Count


class ConfigFile(qwen3_next.DenseConfigFile, kw_only=True):
    num_key_value_heads: Count | None = 4


ForCausalLM = qwen3_next.ForCausalLM
