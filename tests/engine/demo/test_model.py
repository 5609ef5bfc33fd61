"""The bundled model folder, as transformers and our own engine read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from engine.demo import MODEL_DIR
from engine.demo.data import KINDS
from engine.demo.vocabulary import MAX_LENGTH, VOCAB_SIZE
from engine.text.tokenizer import Tokenizer

MAX_BYTES = 16 * 10**6
END_OF_TEXT, TURN_START, TURN_END = 0, 1, 2


def read(name: str) -> Any:
    return json.loads((MODEL_DIR / name).read_text(encoding="utf-8"))


def test_it_is_small_and_holds_nothing_else() -> None:
    sizes = {path.name: path.stat().st_size for path in MODEL_DIR.iterdir()}
    assert set(sizes) == {
        "accuracy.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(sizes.values()) <= MAX_BYTES


def test_the_architecture_is_a_llama_with_tied_embeddings() -> None:
    config = transformers.AutoConfig.from_pretrained(MODEL_DIR)
    assert config.architectures == ["LlamaForCausalLM"]
    assert config.tie_word_embeddings
    assert config.num_attention_heads == 2 * config.num_key_value_heads
    assert config.max_position_embeddings == MAX_LENGTH
    assert config.vocab_size == VOCAB_SIZE


def test_the_weights_are_seven_million_finite_bf16_numbers() -> None:
    total = 0
    with safe_open(MODEL_DIR / "model.safetensors", framework="pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 (no mapping)
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(name)
            total += tensor.numel()
            assert tensor.dtype == torch.bfloat16, name
            assert torch.isfinite(tensor).all(), name
            assert tensor.float().std() > 0, name
    assert total == 6_951_168


def test_transformers_loads_it_whole() -> None:
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model, loading = load(MODEL_DIR, output_loading_info=True)
    assert sum(p.numel() for p in model.parameters()) == 6_951_168
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_special_tokens_have_the_ids_of_the_config() -> None:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(MODEL_DIR)
    tokens = tokenizer.convert_ids_to_tokens([END_OF_TEXT, TURN_START, TURN_END])
    assert tokens == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (TURN_END, END_OF_TEXT)
    config = read("config.json")
    assert (config["eos_token_id"], config["pad_token_id"]) == (TURN_END, END_OF_TEXT)
    assert config["bos_token_id"] is None
    assert len(tokenizer) == config["vocab_size"]


def test_generation_ends_at_the_end_of_a_turn_and_of_the_text() -> None:
    generation = transformers.GenerationConfig.from_pretrained(MODEL_DIR)
    assert generation.eos_token_id == [TURN_END, END_OF_TEXT]
    assert generation.pad_token_id == END_OF_TEXT


def test_our_tokenizer_agrees_about_the_ends() -> None:
    tokenizer = Tokenizer.load(MODEL_DIR)
    assert tokenizer.eos_token_ids == {TURN_END, END_OF_TEXT}
    assert tokenizer.special_ids == {END_OF_TEXT, TURN_START, TURN_END}
    assert tokenizer.vocab_size == VOCAB_SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_the_measured_accuracy_is_at_least_nine_in_ten(kind: str) -> None:
    accuracy = read("accuracy.json")
    assert accuracy["prompts"] >= 40 * len(KINDS)
    assert set(accuracy["per_kind"]) == set(KINDS)
    assert accuracy["per_kind"][kind] >= 0.9
    assert accuracy["overall"] >= 0.95
