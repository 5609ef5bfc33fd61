"""`python3 -m engine.demo.embedding.train --out FOLDER`: trains the embedding model from scratch.

A BERT of two layers learns that the two texts of a pair are closer to each other than to those of
all other pairs of a batch (InfoNCE, arXiv 1807.03748), also by the first 64 and 32 numbers of their
vectors (arXiv 2205.13147). Writes a folder as sentence-transformers does, and measures it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from torch.nn import functional

from engine.demo.embedding.measure import measure
from engine.demo.embedding.pairs import pairs
from engine.demo.log import Log

MAX_LENGTH = 128
SIZES = (128, 64, 32)
_TEMPERATURE = 0.05
_WARMUP = 0.05


def make_tokenizer(seed: int) -> Tokenizer:
    texts = [text for p in islice(pairs("train", seed), 40_000) for text in (p.query, p.document)]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    alphabet = [chr(code) for code in (*range(33, 65), *range(91, 127))]
    trainer = trainers.WordPieceTrainer(
        vocab_size=4096,
        special_tokens=special,
        initial_alphabet=[*alphabet, *(f"##{char}" for char in alphabet)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def config_of(vocab_size: int) -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=SIZES[0],
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_LENGTH,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-6,
    )


def train(options: argparse.Namespace, log: Log) -> None:
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer(options.seed)
    log(f"tokenizer: {tokenizer.get_vocab_size()} tokens")
    config = config_of(tokenizer.get_vocab_size())
    model: Any = transformers.BertModel(config, add_pooling_layer=False).train()
    log(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.01)
    source, began = pairs("train", options.seed), time.monotonic()
    mean_loss = 0.0
    for step in range(options.steps):
        done = step / options.steps
        scale = min(1.0, done / _WARMUP) * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * scale
        batch = list(islice(source, options.batch))
        queries = embed(model, tokenizer, [pair.query for pair in batch])
        documents = embed(model, tokenizer, [pair.document for pair in batch])
        loss = contrast(queries, documents, [pair.document for pair in batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean_loss += (loss.item() - mean_loss) * (0.02 if step else 1.0)
        if step % 200 == 199:
            log(f"step {step + 1}: loss {mean_loss:.3f}, {time.monotonic() - began:.0f} s")
    save(model, config, tokenizer, options.out)
    measure(options.out, options.searches, log)


def embed(model: Any, tokenizer: Tokenizer, texts: Sequence[str]) -> torch.Tensor:
    """[num_texts, size]: the mean of the tokens' hidden states."""
    rows = [encoding.ids[:MAX_LENGTH] for encoding in tokenizer.encode_batch(list(texts))]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1)
    pooled: torch.Tensor = (hidden * weights).sum(1) / weights.sum(1)
    return pooled


def contrast(queries: torch.Tensor, documents: torch.Tensor, texts: Sequence[str]) -> torch.Tensor:
    """The loss, both ways. texts: of the documents; equal ones do not count against each other."""
    numbers = {text: number for number, text in enumerate(texts)}
    same = torch.tensor([numbers[text] for text in texts])
    is_other_copy = (same[:, None] == same) & ~torch.eye(len(texts), dtype=torch.bool)
    targets = torch.arange(len(texts))
    losses = []
    for size in SIZES:
        q = functional.normalize(queries[:, :size], dim=-1)
        d = functional.normalize(documents[:, :size], dim=-1)
        alike = (q @ d.T / _TEMPERATURE).masked_fill(is_other_copy, -1e4)
        losses += [functional.cross_entropy(alike, targets)]
        losses += [functional.cross_entropy(alike.T, targets)]
    return torch.stack(losses).mean()


def save(model: Any, config: transformers.BertConfig, tokenizer: Tokenizer, out: Path) -> None:
    """The weights in 16 bits, and the files of sentence-transformers."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "1_Pooling").mkdir(exist_ok=True)
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    files: dict[str, Any] = {
        "config.json": {
            **config.to_dict(),
            "architectures": ["BertModel"],
            "dtype": "float16",
            "matryoshka_dimensions": list(SIZES),
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_LENGTH,
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
        },
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(kinds)
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": SIZES[0],
            "pooling_mode_mean_tokens": True,
        },
        "sentence_bert_config.json": {"max_seq_length": MAX_LENGTH, "do_lower_case": False},
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="engine.demo.embedding.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=128, help="pairs of a step")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--searches", type=int, default=500, help="held-out questions")
    options = parser.parse_args(argv)
    train(options, Log())


if __name__ == "__main__":
    main()
