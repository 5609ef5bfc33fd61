from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.layers.rope import RopeConfig, cos_sin_table, inverse_frequencies
from kernels import reference

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def transformers_rotary(scaling: str, parameters: dict[str, Any]) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=512,
        rope_parameters={"rope_type": scaling, "rope_theta": 500.0, **parameters},
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize(
    ("scaling", "parameters"),
    [
        ("default", {}),
        ("linear", {"factor": 4.0}),
        ("dynamic", {"factor": 2.0}),
        ("llama3", LLAMA3),
    ],
)
def test_rotations_equal_transformers(scaling: str, parameters: dict[str, Any]) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    theirs = transformers_rotary(scaling, parameters)
    config = RopeConfig(500.0, scaling, parameters)
    torch.testing.assert_close(inverse_frequencies(config, 32), theirs.inv_freq, rtol=1e-6, atol=0)

    positions = torch.tensor([0, 1, 100, 511])
    x = torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(0))
    cos, sin = theirs(x, positions[None])
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    table = cos_sin_table(config, 32, 512, torch.device("cpu"))
    cache = torch.zeros(1, 4, 3, 32)
    ours = x.clone()
    reference.rope_and_cache(ours, x, x, cache, cache.clone(), table, positions, torch.arange(4))
    torch.testing.assert_close(ours, expected[0].transpose(0, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache[0], ours)
