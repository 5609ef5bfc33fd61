"""What config.json says in one published checkpoint of each family: shapes to be measured with
random weights."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {"torch_dtype": "bfloat16", "rope_theta": 1_000_000.0}

SHAPES: dict[str, dict[str, Any]] = {
    name: {**_COMMON, "architectures": [architecture], **fields}
    for name, architecture, fields in (
        (
            "Llama-3-8B",
            "LlamaForCausalLM",
            {
                "vocab_size": 128256,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "max_position_embeddings": 8192,
                "rope_theta": 500_000.0,
            },
        ),
        (
            "Mistral-7B-v0.3",
            "MistralForCausalLM",
            {
                "vocab_size": 32768,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "max_position_embeddings": 32768,
                "sliding_window": None,
            },
        ),
        (
            "Qwen2.5-7B",
            "Qwen2ForCausalLM",
            {
                "vocab_size": 152064,
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "max_position_embeddings": 32768,
            },
        ),
        (
            "Qwen3-8B",
            "Qwen3ForCausalLM",
            {
                "vocab_size": 151936,
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "max_position_embeddings": 40960,
            },
        ),
        (
            "Granite-3.3-8B",
            "GraniteForCausalLM",
            {
                "vocab_size": 49159,
                "hidden_size": 4096,
                "intermediate_size": 12800,
                "num_hidden_layers": 40,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "max_position_embeddings": 131072,
                "attention_multiplier": 0.0078125,
                "embedding_multiplier": 12.0,
                "residual_multiplier": 0.22,
                "logits_scaling": 16.0,
                "tie_word_embeddings": True,
            },
        ),
        (
            "Phi-3-mini",
            "Phi3ForCausalLM",
            {
                "vocab_size": 32064,
                "hidden_size": 3072,
                "intermediate_size": 8192,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "max_position_embeddings": 4096,
            },
        ),
        (
            "Gemma-2-9B",
            "Gemma2ForCausalLM",
            {
                "vocab_size": 256000,
                "hidden_size": 3584,
                "intermediate_size": 14336,
                "num_hidden_layers": 42,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "max_position_embeddings": 8192,
                "sliding_window": 4096,
            },
        ),
        (
            "Gemma-3-12B",
            "Gemma3ForCausalLM",
            {
                "vocab_size": 262208,
                "hidden_size": 3840,
                "intermediate_size": 15360,
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "query_pre_attn_scalar": 256,
                "sliding_window": 1024,
                "sliding_window_pattern": 6,
                "max_position_embeddings": 131072,
            },
        ),
        (
            "Mixtral-8x7B",
            "MixtralForCausalLM",
            {
                "vocab_size": 32000,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "max_position_embeddings": 32768,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
            },
        ),
        (
            "Qwen3-30B-A3B",
            "Qwen3MoeForCausalLM",
            {
                "vocab_size": 151936,
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "moe_intermediate_size": 768,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "norm_topk_prob": True,
                "max_position_embeddings": 40960,
            },
        ),
        (
            "DeepSeek-V2-Lite",
            "DeepseekV2ForCausalLM",
            {
                "vocab_size": 102400,
                "hidden_size": 2048,
                "intermediate_size": 10944,
                "moe_intermediate_size": 1408,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "n_routed_experts": 64,
                "n_shared_experts": 2,
                "num_experts_per_tok": 6,
                "first_k_dense_replace": 1,
                "q_lora_rank": None,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "max_position_embeddings": 4096,
            },
        ),
    )
}
"""By the name of the checkpoint."""

QUANTIZATIONS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "fp8": None,
    "fp8-blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
}
"""What is added to a config.json as its quantization_config; "fp8" rounds while loading."""
