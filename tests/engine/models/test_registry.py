from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.errors import ModelLoadError
from engine.layers.rope import RopeConfig
from engine.models import registry
from engine.models.base import ModelConfig
from engine.models.llama import ForCausalLM
from engine.weights.names import targets

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    rms_norm_eps=1e-5,
    max_position_embeddings=16,
    rope=RopeConfig(),
    tie_word_embeddings=False,
    attention_bias=False,
    mlp_bias=False,
    dtype=torch.float32,
    eos_token_ids=frozenset(),
)
HOW = {"max_model_len": 16, "dtype": torch.float32, "device": torch.device("cpu")}


def test_an_architecture_is_found_by_its_name() -> None:
    model = registry.create_model(CONFIG, **HOW)  # type: ignore[arg-type]
    assert isinstance(model, ForCausalLM)


def test_unknown_architectures_are_refused_with_the_known_ones() -> None:
    unknown = replace(CONFIG, architecture="GPT2LMHeadModel")
    with pytest.raises(ModelLoadError, match=r"'GPT2LMHeadModel' has no native .*, only Llama"):
        registry.create_model(unknown, **HOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_llama_wants_exactly_the_tensors_of_transformers(tied: bool, bias: bool) -> None:
    from transformers import LlamaConfig
    from transformers import LlamaForCausalLM as TheirLlama

    ours = registry.create_model(
        replace(CONFIG, tie_word_embeddings=tied, attention_bias=bias, mlp_bias=bias),
        **HOW,  # type: ignore[arg-type]
    )
    theirs = TheirLlama(
        LlamaConfig(
            vocab_size=11,
            hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=tied,
            attention_bias=bias,
            mlp_bias=bias,
        )
    )
    wanted = {name: target.weight.part(target.part).shape for name, target in targets(ours).items()}
    saved = {
        name: tensor.shape
        for name, tensor in theirs.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    assert wanted == saved
