"""Small real tokenizers and model folders."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<unk>", "<s>", "</s>"]
CORPUS = ["the cat sat on the mat, naïve café, 你好世界 你好 😀😀 привет привет the the cat"] * 4


def byte_level() -> Tokenizer:
    """Byte-level BPE, as Llama 3 and Qwen use: special ids 0 to 2, then bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<tool_call>", "añadido x"])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """BPE with byte fallback, as Llama 2 and Mistral use."""
    pieces = ["▁", "▁▁", "▁the", "cat", "▁cat", "a", "é", "▁é", "好"]
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    tokenizer = Tokenizer(
        models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def metaspace() -> Tokenizer:
    """Without byte fallback, as T5 uses."""
    names = [*SPECIAL, "▁", "▁the", "cat", "▁▁é", "a▁b"]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_pieces() -> Tokenizer:
    """As BERT uses."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=90,
        special_tokens=SPECIAL,
        initial_alphabet=[*"abcdefghijklmnopqrstuvwxyz.,!?-'ï"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_model_folder(
    directory: Path, *, tokenizer: Tokenizer | None = None, **files: object
) -> Path:
    """``files``: name without .json -> object."""
    (tokenizer or byte_level()).save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def write_llama(directory: Path, *, max_position_embeddings: int = 256) -> Path:
    """A random Llama with grouped-query attention, and ``byte_level`` as its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = byte_level()
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=max_position_embeddings,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,  # wide enough for greedy output that varies
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return write_model_folder(
        directory,
        tokenizer=tokenizer,
        tokenizer_config={"chat_template": CHAT_TEMPLATE, "bos_token": "<s>"},
    )
