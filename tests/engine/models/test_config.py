from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.architectures import NATIVE
from engine.errors import ModelLoadError
from engine.models.registry import read_config

MINIMAL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


def write(folder: Path, **changes: Any) -> Path:
    fields = {k: v for k, v in {**MINIMAL, **changes}.items() if v != "absent"}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    config = read_config(write(tmp_path))
    theirs = LlamaConfig(**{k: v for k, v in MINIMAL.items() if k != "architectures"})
    assert config.num_kv_heads == theirs.num_key_value_heads
    assert config.head_dim == theirs.head_dim
    assert config.rms_norm_eps == theirs.rms_norm_eps
    assert config.max_position_embeddings == theirs.max_position_embeddings
    assert theirs.rope_parameters is not None
    assert config.rope.theta == theirs.rope_parameters["rope_theta"]
    assert config.tie_word_embeddings == theirs.tie_word_embeddings
    assert config.dtype == torch.float32


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "linear", "factor": 2.0}},
    ],
)
def test_both_spellings_of_rope_are_read(tmp_path: Path, spelling: dict[str, Any]) -> None:
    rope = read_config(write(tmp_path, **spelling)).rope
    assert (rope.theta, rope.scaling, rope.parameters["factor"]) == (500000.0, "linear", 2.0)


@pytest.mark.parametrize(
    ("config_ids", "generation_ids", "expected"),
    [
        (2, None, {2}),
        ([2, 5], None, {2, 5}),
        (2, [7, 8], {7, 8}),
        (2, "absent", {2}),
        (None, None, set()),
    ],
)
def test_generation_config_decides_the_end_of_sequence(
    tmp_path: Path, config_ids: Any, generation_ids: Any, expected: set[int]
) -> None:
    write(tmp_path, eos_token_id=config_ids)
    if generation_ids != "absent":
        text = json.dumps({"eos_token_id": generation_ids})
        (tmp_path / "generation_config.json").write_text(text)
    assert read_config(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": "absent"}, "missing required field `vocab_size`"),
        ({"hidden_size": "big"}, r"Expected `int`, got `str` - at `\$.hidden_size`"),
        ({"architectures": []}, "architectures: is missing or empty"),
        ({"hidden_act": "gelu"}, "hidden_act: not supported: 'gelu', only 'silu'"),
        ({"sliding_window": 512}, "sliding_window: not supported by LlamaForCausalLM: 512"),
        ({"qk_layernorm": True}, "qk_layernorm: not supported"),
        ({"num_local_experts": 4}, "num_local_experts: not supported"),
        ({"torch_dtype": "float64"}, "dtype: not supported: 'float64'"),
        ({"rope_scaling": {"rope_type": "axial", "factor": 2}}, "rope scaling 'axial'"),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": 2}}, "the list 'short_factor'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "needs the number 'low_freq"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor: 3 of 8 dimensions cannot turn"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor: 16 of 8 dimensions"),
        (
            {"rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1]}},
            "short_factor has 1 numbers, not 4",
        ),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads 3"),
        ({"vocab_size": -1}, r"Expected `int` >= 1 - at `\$.vocab_size`"),
        ({"num_hidden_layers": 0}, r">= 1 - at `\$.num_hidden_layers`"),
        ({"num_key_value_heads": -2}, r">= 1 - at `\$.num_key_value_heads`"),
        ({"max_position_embeddings": 0}, r">= 1 - at `\$.max_position_embeddings`"),
        ({"rms_norm_eps": -1.0}, r"Expected `float` > 0.0 - at `\$.rms_norm_eps`"),
        ({"rope_parameters": {"rope_theta": "ten"}}, "rope_theta: must be a number above 0"),
        ({"rope_parameters": {"rope_theta": None}}, "rope_theta: must be a number above 0"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta: must be a number above 0, got 0"),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, "factor: must be a .*, got -2"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read_config(write(tmp_path, **changes))


def test_a_missing_folder_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match=r"cannot read .*config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{]")
    with pytest.raises(ModelLoadError, match=r"config\.json: JSON is malformed"):
        read_config(tmp_path)


@pytest.mark.parametrize("architecture", NATIVE)
def test_every_familys_defaults_are_those_of_transformers(
    tmp_path: Path, architecture: str
) -> None:
    """What a file leaves out means the same as what transformers writes in full."""
    import transformers

    fields = {k: v for k, v in MINIMAL.items() if k != "architectures"}
    fields |= {"num_key_value_heads": 4, "num_attention_heads": 4}
    if "Deepseek" in architecture:
        fields |= {"num_experts_per_tok": 2}
    if architecture.startswith(("Qwen3Next", "Qwen3_5", "Qwen3VL", "Qwen2_5_VL")):
        fields |= {"num_hidden_layers": 4}  # the last of which attends
    if architecture.startswith("Qwen2_5_VL"):
        fields |= {"hidden_size": 512}  # whose heads have the default sections
    if architecture == "GraniteMoeHybridForCausalLM":
        types = ["linear_attention", "full_attention"]
        fields |= {"layer_types": types, "num_local_experts": 0, "mamba_n_heads": 4}
    if architecture.endswith("ForConditionalGeneration"):
        fields = {"text_config": fields}
    theirs = getattr(transformers, architecture).config_class(**fields)
    theirs.architectures = [architecture]
    theirs.save_pretrained(tmp_path)
    in_full = read_config(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**fields, "architectures": [architecture], "eos_token_id": []}))
    assert read_config(tmp_path) == replace(in_full, eos_token_ids=frozenset())


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2}}, "'linear' is not"),
        ("Gemma2ForCausalLM", {"hidden_activation": "relu"}, "hidden_activation: not supp.*'relu'"),
        ("Gemma2ForCausalLM", {"layer_types": ["full_attention"]}, "names 1 layers, num_hidden_la"),
        (
            "Gemma2ForCausalLM",
            {"layer_types": ["conv"] * 2},
            "layer_types: 'conv' is not",
        ),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Qwen2ForCausalLM", {"num_experts": 4}, "num_experts: not supported by Qwen2ForCausalLM"),
        ("Qwen2ForCausalLM", {"embedding_multiplier": 2.0}, "embedding_multiplier: not supported"),
        ("Gemma3ForCausalLM", {"sliding_window": 0}, "sliding_window: must be at least 1, got 0"),
        ("MixtralForCausalLM", {"hidden_act": "gelu_pytorch_tanh"}, "experts have 'silu' only"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 of 8 experts"),
        ("Qwen3MoeForCausalLM", {"num_experts_per_tok": 0}, r">= 1 - at `\$.num_experts_per_tok`"),
        ("DeepseekV3ForCausalLM", {"n_group": 7}, "n_group: 7 groups of 256 experts"),
        ("DeepseekV3ForCausalLM", {"n_group": 256}, "n_group: 256, but the two best of a group"),
        ("DeepseekV3ForCausalLM", {"topk_group": 9}, "topk_group: 9 of 8 groups"),
        (
            "DeepseekV3ForCausalLM",
            {"n_group": 64, "topk_group": 1},
            "num_experts_per_tok: 8, but topk_group leaves 4 experts",
        ),
        ("DeepseekV2ForCausalLM", {"topk_method": "noaux_tc"}, "topk_method: not supported"),
        ("DeepseekV2ForCausalLM", {"scoring_func": "sigmoid"}, "scoring_func: not supported"),
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob: not supported"),
        ("DeepseekV2ForCausalLM", {"moe_layer_freq": 2}, "moe_layer_freq: not supported: 2"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "scoring_func: not supported"),
    ],
)
def test_what_a_family_does_not_have_is_refused_by_name(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=f"config\\.json: .*{message}"):
        read_config(write(tmp_path, architectures=[architecture], **changes))


def test_phi3s_first_names_for_longrope_are_read(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    for name in ("su", "yarn", "longrope"):
        write(
            tmp_path,
            architectures=["Phi3ForCausalLM"],
            original_max_position_embeddings=1024,
            rope_scaling={"type": name, **factors},
        )
        rope = read_config(tmp_path).rope
        assert rope.scaling == "longrope"
        assert rope.parameters["original_max_position_embeddings"] == 1024


def test_gemma3s_first_fields_for_two_ropes_are_read(tmp_path: Path) -> None:
    config = read_config(
        write(
            tmp_path,
            architectures=["Gemma3ForCausalLM"],
            rope_theta=5e5,
            rope_local_base_freq=2e4,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
            num_hidden_layers=7,
            sliding_window=512,
            sliding_window_pattern=3,
        )
    )
    assert (config.rope.theta, config.rope.scaling) == (5e5, "linear")
    assert config.window_rope is not None
    assert (config.window_rope.theta, config.window_rope.scaling) == (2e4, "default")
    assert config.windows == (512, 512, None, 512, 512, None, 512)


def test_a_window_that_no_sequence_outgrows_is_none(tmp_path: Path) -> None:
    config = read_config(
        write(
            tmp_path,
            architectures=["Gemma2ForCausalLM"],
            sliding_window=64,
            max_position_embeddings=65,
        )
    )
    assert [config.window(i) for i in range(2)] == [64, None]
    assert config.narrowest_window == 64
    assert replace(config, windows=(64, *config.windows[1:-1], 32)).narrowest_window == 32
    short = replace(config, max_position_embeddings=64)
    assert short.window(0) is short.narrowest_window is None
