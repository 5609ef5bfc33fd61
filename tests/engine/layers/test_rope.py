from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.layers.rope import RopeConfig, attention_factor, cos_sin_table, inverse_frequencies
from kernels import reference

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


YARN = {"factor": 40.0, "original_max_position_embeddings": 12}


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
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 128}),
        ("yarn", {"factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 8}),
        ("yarn", {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False}),
        ("yarn", {**YARN, "attention_factor": 0.9}),
    ],
)
def test_rotations_equal_transformers(scaling: str, parameters: dict[str, Any]) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    theirs = transformers_rotary(scaling, parameters)
    config = RopeConfig(500.0, scaling, parameters, max_position_embeddings=512)
    torch.testing.assert_close(inverse_frequencies(config, 32), theirs.inv_freq, rtol=1e-6, atol=0)

    positions = torch.tensor([0, 1, 100, 511])
    x = torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(0))
    cos, sin = theirs(x, positions[None])
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    table = cos_sin_table(config, 32, 512, torch.device("cpu"))
    cache = torch.zeros(1, 4, 3, 32)
    ours = x.clone()
    reference.rope_and_cache(ours, x, x, cache, cache.clone(), table, positions, torch.arange(4))
    # At position 511 the last bit of a frequency is 3e-5 radians.
    torch.testing.assert_close(ours, expected[0].transpose(0, 1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache[0], ours)


def test_the_served_length_decides_between_longropes_factors() -> None:
    factors = {"short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}
    parameters = {**factors, "original_max_position_embeddings": 100}
    config = RopeConfig(10.0, "longrope", parameters, max_position_embeddings=400)
    plain = inverse_frequencies(RopeConfig(10.0), 4)
    short, long = (inverse_frequencies(config, 4, n) for n in (100, 101))
    torch.testing.assert_close(short, plain / torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(long, plain / torch.tensor([4.0, 8.0]))
    # sqrt(1 + ln 4 / ln 100)
    assert attention_factor(config) == pytest.approx(1.14056, abs=1e-4)
    torch.testing.assert_close(
        cos_sin_table(config, 4, 100, torch.device("cpu"))[0],
        torch.tensor([1.14056, 1.14056, 0.0, 0.0]),
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_part_of_the_dimensions_turns_as_if_it_were_all() -> None:
    part = RopeConfig(10.0, rotary_fraction=0.75)
    assert torch.equal(inverse_frequencies(part, 16), inverse_frequencies(RopeConfig(10.0), 12))
