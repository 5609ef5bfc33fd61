"""``python -m engine.bench.embeddings``: prompt tokens per second beside sentence-transformers.

Both embed the same texts in float32 on the same CPU threads, in turns, with all that a caller waits
for: tokenizing, batching, the model, and vectors as Python or NumPy gives them. The texts are those
that the demo's data has, from a few words to paragraphs. ``--model`` measures a checkpoint; without
it, random weights of all-MiniLM-L6-v2's shape, with the bundled model's tokenizer, and the bundled
model.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from engine.bench.race import Standing, race, settle_down
from engine.demo.data import facts, knowledge, stories
from engine.demo.embedding import EMBEDDING_MODEL_DIR
from engine.llm import LLM
from engine.pooling import cosine

MINILM: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


def texts(num: int, seed: int) -> list[str]:
    """A third questions, a third sentences, a third paragraphs of up to a dozen sentences."""
    rng = random.Random(seed)
    found = []
    for number in range(num):
        turn = rng.choice((facts.turns, knowledge.turns))(rng)[0]
        if number % 3 == 0:
            found.append(str(turn.inputs[0]["content"]))
        elif number % 3 == 1:
            found.append(str(turn.output["content"]))
        else:
            told = [stories.turns(rng)[0].output["content"] for _ in range(rng.randint(1, 3))]
            found.append(" ".join(" ".join(map(str, told)).split()[:80]))
    return found


def write_random(folder: Path, shape: dict[str, Any]) -> None:
    """A random BERT with the bundled model's tokenizer, pooled and normalized as that is."""
    import transformers

    torch.manual_seed(0)
    shutil.copytree(EMBEDDING_MODEL_DIR, folder, dirs_exist_ok=True)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = transformers.BertConfig(**shape, vocab_size=vocab_size)
    model: Any = transformers.BertModel(config, add_pooling_layer=False)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder)
    limits = {"max_seq_length": 256, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    pooling = {"word_embedding_dimension": shape["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Standing]:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise SystemExit("no sentence-transformers: pip install 'sluice[bench]'") from None

    llm = LLM(folder, num_threads=options.threads)
    torch.set_num_threads(options.threads)
    other: Any = SentenceTransformer(str(folder), device="cpu").float()
    asked = texts(options.texts, seed=1)
    encoder = llm.get_tokenizer()
    num_tokens = sum(map(len, encoder.encode_batch(asked)))

    def ours(_round: int) -> int:
        llm.embed(asked)
        return num_tokens

    def theirs(_round: int) -> int:
        other.encode(asked, batch_size=options.batch_size, show_progress_bar=False)
        return num_tokens

    same = llm.embed(asked[:8])
    vectors = other.encode(asked[:8], show_progress_bar=False)
    for output, vector in zip(same, vectors, strict=True):
        alike = cosine(torch.tensor(output.outputs.embedding).numpy(), vector)
        assert alike > 0.9999, f"the engines do not compute the same: cosine {alike}"
    engines: dict[str, Callable[[int], int]] = {"sentence-transformers": theirs, "sluice": ours}
    settle_down(on_gpu=False)
    return race(
        engines, ["sentence-transformers"], precision=options.precision, max_s=options.seconds
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="engine.bench.embeddings", description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder as sentence-transformers writes it")
    parser.add_argument("--texts", type=int, default=512, help="texts of a round")
    parser.add_argument("--batch-size", type=int, default=32, help="of sentence-transformers")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, for each model")
    parser.add_argument("--precision", type=float, default=0.05, help="of the ratio")
    options = parser.parse_args(argv)
    console, table = Console(), Table("model", "engine", "tokens/s", "ratio", "95 %", "rounds")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        write_random(Path(scratch), MINILM)
        folders = {"MiniLM-L6 (random)": Path(scratch), "bundled": EMBEDDING_MODEL_DIR}
        if options.model is not None:
            folders = {options.model.name: options.model}
        for name, folder in folders.items():
            for engine, found in measure(folder, options).items():
                low, high = found.interval
                table.add_row(
                    *(name, engine, f"{found.tok_s:,.0f}", f"{found.speed_up:.2f}"),
                    *(f"{low:.2f} to {high:.2f}", str(found.num_rounds)),
                )
    console.print(table)


if __name__ == "__main__":
    main()
