"""Random small checkpoints of every family, written by transformers itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from engine.architectures import NATIVE
from tests.engine import toys

MAX_MODEL_LEN = 128
PROMPT_LEN = 45
"""Longer than any window, and than the length a scaled model was first trained on."""

PROMPTS = ("the cat sat on the mat, naïve café, the cat", "你好", "a cat the")


@dataclass(frozen=True)
class Case:
    name: str
    architecture: str
    """Of transformers' class."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What differs from ``COMMON``, for transformers' config."""
    prompts: tuple[str, ...] = PROMPTS
    around: dict[str, Any] | None = None
    """Fields of a config whose ``text_config`` has all the others."""
    since: str = "0"
    """A version of transformers from which on its reference is right."""

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a recurrent state, which drafts cannot be taken out of."""
        kinds = set(self.fields.get("layer_types", ()))
        return not kinds <= {"full_attention", "sliding_attention"}

    @property
    def family(self) -> str:
        native = NATIVE.get(self.architecture)
        return self.architecture if native is None else native.name


COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_MODEL_LEN,
    "initializer_range": 0.08,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 300.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
GROWING = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.7}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 300.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}

GLM = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
}

HYBRID = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
}
SECTIONED = {
    "rope_type": "default",
    "rope_theta": 300.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [2, 1, 1],
}
WHOLE = {"rope_type": "default", "rope_theta": 300.0, "mrope_section": [4, 2, 2]}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 1,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
CONVOLVED = {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_multiple_of": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
}
SELECTIVE = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 0,
    "shared_intermediate_size": 96,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
SHARED_MOE = {**MOE, "shared_expert_intermediate_size": 48}

GPT_OSS = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 9,
    "rope_parameters": {**YARN, "truncate": False},
}

CASES = [
    Case("llama2", "LlamaForCausalLM", {"num_key_value_heads": 4}),
    Case("llama3", "LlamaForCausalLM", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    Case("llama-yarn", "LlamaForCausalLM", {"rope_parameters": YARN, "attention_bias": True}),
    Case("mistral", "MistralForCausalLM", {"sliding_window": 9}),
    Case("ministral3", "Ministral3ForCausalLM", {"rope_parameters": GROWING}),
    Case(
        "mistral-small-that-sees",
        "Mistral3ForConditionalGeneration",
        {"model_type": "ministral3", "rope_parameters": GROWING},
        around={
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "head_dim": 16,
                "image_size": 28,
                "patch_size": 14,
                "model_type": "pixtral",
            },
            "tie_word_embeddings": False,
        },
    ),
    Case("qwen2", "Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    Case(
        "qwen2-window",
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    Case("qwen3", "Qwen3ForCausalLM"),
    Case(
        "granite",
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
        },
    ),
    Case("phi3", "Phi3ForCausalLM", {"sliding_window": 20}),
    Case(
        "phi3-longrope",
        "Phi3ForCausalLM",
        {
            "rope_parameters": {**LONGROPE, "partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 32,
        },
        # In transformers, and only there, short texts have frequencies of their own.
        prompts=(PROMPTS[0] * 4, PROMPTS[0] * 7),
    ),
    Case("gemma2", "Gemma2ForCausalLM", {"sliding_window": 9, "query_pre_attn_scalar": 20}),
    Case(
        "gemma3",
        "Gemma3ForCausalLM",
        {
            "sliding_window": 9,
            "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Case(
        "gemma3-that-sees",
        "Gemma3ForConditionalGeneration",
        {"sliding_window": 9, "sliding_window_pattern": 2},
        around={
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
        },
    ),
    Case(
        "mixtral",
        "MixtralForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20},
    ),
    Case("qwen3-moe", "Qwen3MoeForCausalLM", {**MOE, "norm_topk_prob": True}),
    Case("qwen3-moe-mixed", "Qwen3MoeForCausalLM", {**MOE, "mlp_only_layers": [1]}),
    Case(
        "deepseek-v2",
        "DeepseekV2ForCausalLM",
        {**MLA, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5},
    ),
    Case("deepseek-v2-lite", "DeepseekV2ForCausalLM", {**MLA, "q_lora_rank": None}),
    Case("deepseek-v3", "DeepseekV3ForCausalLM", {**MLA, "n_shared_experts": 2}),
    Case(
        "deepseek-v3-yarn",
        "DeepseekV3ForCausalLM",
        {**MLA, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}},
    ),
    Case("qwen3-next", "Qwen3NextForCausalLM", {**HYBRID, **SHARED_MOE, "linear_num_key_heads": 2}),
    Case(
        "qwen3-next-dense", "Qwen3NextForCausalLM", {**HYBRID, **SHARED_MOE, "mlp_only_layers": [1]}
    ),
    Case("qwen3.5", "Qwen3_5ForCausalLM", {**HYBRID, "linear_num_key_heads": 2}),
    Case("qwen3.5-moe", "Qwen3_5MoeForCausalLM", {**HYBRID, **SHARED_MOE}),
    Case(
        "qwen3.5-that-sees",
        "Qwen3_5ForConditionalGeneration",
        {**HYBRID, "rope_parameters": SECTIONED},
        around={"vision_config": QWEN_VISION},
    ),
    Case(
        "qwen3.5-moe-that-sees",
        "Qwen3_5MoeForConditionalGeneration",
        {**HYBRID, **SHARED_MOE, "rope_parameters": SECTIONED},
        around={"vision_config": QWEN_VISION},
    ),
    Case(
        "qwen2.5-vl",
        "Qwen2_5_VLForConditionalGeneration",
        {"rope_parameters": WHOLE},
        around={"vision_config": {**QWEN_VISION, "fullatt_block_indexes": [0]}},
    ),
    Case(
        "qwen3-vl",
        "Qwen3VLForConditionalGeneration",
        {
            "rope_parameters": {
                **SECTIONED,
                "partial_rotary_factor": 1.0,
                "mrope_section": [4, 2, 2],
            }
        },
        around={"vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0]}},
    ),
    Case("lfm2", "Lfm2ForCausalLM", {**CONVOLVED, "tie_word_embeddings": False}),
    Case("lfm2-adjusted", "Lfm2ForCausalLM", {**CONVOLVED, "block_multiple_of": 16}),
    Case("granite-hybrid", "GraniteMoeHybridForCausalLM", SELECTIVE),
    Case(
        "granite-hybrid-rope",
        "GraniteMoeHybridForCausalLM",
        {**SELECTIVE, "position_embedding_type": "rope", "mamba_n_groups": 2},
        since="5.24",  # 5.17 leaves out the rotation.
    ),
    Case("gpt-oss", "GptOssForCausalLM", GPT_OSS),
    Case("glm-4.5", "Glm4MoeForCausalLM", {**GLM, "n_group": 4, "topk_group": 2}),
    Case(
        "glm-4.5-normed",
        "Glm4MoeForCausalLM",
        {**GLM, "use_qk_norm": True, "attention_bias": True, "n_shared_experts": 2},
    ),
]

FALLBACK_CASES = [
    Case("gpt2", "GPT2LMHeadModel"),
    Case("opt", "OPTForCausalLM", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    Case("gpt-neox", "GPTNeoXForCausalLM", {"rotary_pct": 0.5}),
    Case("gpt-bigcode", "GPTBigCodeForCausalLM"),
    Case("starcoder2", "Starcoder2ForCausalLM", {"sliding_window": 9}),
    Case("phi", "PhiForCausalLM", {"qk_layernorm": True}),
    Case("gemma", "GemmaForCausalLM"),
    Case("olmo", "OlmoForCausalLM", {"clip_qkv": 2.0}),
    Case("olmo2", "Olmo2ForCausalLM"),
    Case("olmoe", "OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}),
    Case("cohere", "CohereForCausalLM", {"logit_scale": 0.5}),
    Case(
        "cohere2",
        "Cohere2ForCausalLM",
        {"logit_scale": 0.5, "sliding_window": 9, "num_hidden_layers": 4},
    ),
    Case("glm4", "Glm4ForCausalLM"),
    Case("smollm3", "SmolLM3ForCausalLM"),
    Case("nemotron", "NemotronForCausalLM"),
    Case("exaone4", "Exaone4ForCausalLM", {"sliding_window": 9, "sliding_window_pattern": 2}),
]
"""Served by transformers' code."""


def write(case: Case, folder: Path, **changes: Any) -> Path:
    """A checkpoint whose biases and norms are random, too, and ``toys.byte_level`` beside it."""
    import torch
    import transformers

    if Version(transformers.__version__) < Version(case.since):
        pytest.skip(f"transformers {transformers.__version__} computes {case.name} differently")
    torch.manual_seed(0)
    tokenizer = toys.byte_level()
    model_class = getattr(transformers, case.architecture)
    fields = {**COMMON, "vocab_size": tokenizer.get_vocab_size(), **case.fields, **changes}
    if case.around is not None:
        fields = {"text_config": fields, **case.around}
    model = model_class(model_class.config_class(**fields))
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.dim() == 1 and "inv_freq" not in name:
                tensor += 0.1 * torch.randn_like(tensor)
            elif not tensor.any():  # Gemma 3's projector begins at 0
                tensor.normal_(0, 0.1)
    model.save_pretrained(folder)
    toys.write_model_folder(
        folder, tokenizer=tokenizer, tokenizer_config={"chat_template": toys.CHAT_TEMPLATE}
    )
    assert json.loads((folder / "config.json").read_text())["architectures"] == [case.architecture]
    return folder


def reference(case: Case, folder: Path) -> Any:
    """The checkpoint as transformers computes it, in float32."""
    import torch
    import transformers

    model_class = getattr(transformers, case.architecture)
    return model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
