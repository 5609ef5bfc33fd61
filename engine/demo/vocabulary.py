"""The tokenizer of the demo model: byte-level BPE, digits one by one, ChatML's special tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.demo.template import TEMPLATE_FILE

VOCAB_SIZE = 4096
MAX_LENGTH = 2048
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
_SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
_MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# A word may begin with a space, but with no other sign. So `"Paris` and ` Paris` share the tokens
# of their letters, which makes copying easy. Each digit is a token, which makes arithmetic
# possible.
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = VOCAB_SIZE,
    *,
    special: Sequence[str] = _SPECIAL,
    markers: Sequence[str] = _MARKERS,
) -> Tokenizer:
    """Learn the merges. Every byte is in the vocabulary, so that any text can be encoded.

    markers: single tokens that are not special, so that decoding keeps them, as the tags of tool
    calls.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(markers),
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(m, special=False, normalized=False) for m in markers])
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that every tokenizer of this package has."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def save_tokenizer(
    tokenizer: Tokenizer, folder: Path, template: Path = TEMPLATE_FILE, max_length: int = MAX_LENGTH
) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    shutil.copyfile(template, folder / "chat_template.jinja")
