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
