"""Random checkpoints in Hugging Face layout, written by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCAB_SIZE = 203  # No multiple of 32 (grammar masks) nor of 4 (random words).
MAX_MODEL_LEN = 160


def save_tiny_llama(
    folder: Path, *, seed: int = 0, max_shard_size: str = "5GB", **config: Any
) -> None:
    """Grouped-query attention; weights large enough that the top logits are far apart."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_MODEL_LEN,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**fields, **config}))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
