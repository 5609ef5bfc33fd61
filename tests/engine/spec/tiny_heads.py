"""Draft networks for a tiny model with a vocabulary of a few tokens, in the published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.engine.runner.tiny_llama import save_tiny_llama

HIDDEN, HEADS, KV_HEADS, MLP = 32, 4, 2, 48
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}


def save_tiny(folder: Path, vocab_size: int) -> dict[str, dict[str, Any]]:
    """Writes a target, ``folder / "target"``, and returns the ``speculative_config`` of each way
    to draft for it, ``num_speculative_tokens`` left out."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 64,
    }
    save_tiny_llama(folder / "target", **sizes)
    save_tiny_llama(folder / "draft_model", seed=1, **{**sizes, "num_hidden_layers": 1})
    generator = torch.Generator().manual_seed(5)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    def layer(prefix: str, width: int) -> dict[str, torch.Tensor]:
        kv_size = HIDDEN // HEADS * KV_HEADS
        return {
            f"{prefix}.self_attn.q_proj.weight": weight(HIDDEN, width),
            f"{prefix}.self_attn.k_proj.weight": weight(kv_size, width),
            f"{prefix}.self_attn.v_proj.weight": weight(kv_size, width),
            f"{prefix}.self_attn.o_proj.weight": weight(HIDDEN, HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": weight(MLP, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": weight(MLP, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": weight(HIDDEN, MLP),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
        }

    config = {**CONFIG, "vocab_size": vocab_size}
    _save(
        folder / "eagle",
        config,
        {"fc.weight": weight(HIDDEN, 2 * HIDDEN), **layer("layers.0", HIDDEN)},
    )
    # It cannot draft two of the tokens.
    draft_ids = torch.tensor([i for i in range(vocab_size) if i not in (0, 3)])
    _save(
        folder / "eagle3",
        {
            **config,
            "draft_vocab_size": len(draft_ids),
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        },
        {
            "fc.weight": weight(HIDDEN, 3 * HIDDEN),
            **layer("midlayer", 2 * HIDDEN),
            "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
            "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
            "norm.weight": torch.ones(HIDDEN),
            "lm_head.weight": weight(len(draft_ids), HIDDEN),
            "d2t": draft_ids - torch.arange(len(draft_ids)),
        },
    )
    save_medusa(folder / "medusa", draw_medusa(HIDDEN, vocab_size))
    networks = ("draft_model", "eagle", "eagle3", "medusa")
    return {
        "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
        "suffix": {"method": "suffix", "suffix_decoding_max_spec_factor": 3.0},
        **{name: {"method": name, "model": str(folder / name)} for name in networks},
    }


def draw_medusa(hidden_size: int, vocab_size: int) -> dict[str, torch.Tensor]:
    """Three heads, in float32 values that bfloat16 holds."""
    generator = torch.Generator().manual_seed(6)
    shapes = {
        "0.linear.weight": (hidden_size, hidden_size),
        "0.linear.bias": (hidden_size,),
        "1.weight": (vocab_size, hidden_size),
    }
    return {
        f"{head}.{name}": (torch.randn(shape, generator=generator) * 0.3).bfloat16().float()
        for head in range(3)
        for name, shape in shapes.items()
    }


def save_medusa(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """In the layout of its authors."""
    _save(
        folder,
        {"medusa_num_heads": 3, "medusa_num_layers": 1},
        tensors,
        "medusa_lm_head.safetensors",
    )


def _save(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    name: str = "model.safetensors",
) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / name)
