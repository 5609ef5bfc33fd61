"""`python3 -m engine.demo.embedding.measure`: how often the right one of ten sentences is found.

Through our engine, on a CPU. Writes accuracy.json into the model's folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine.demo.embedding import EMBEDDING_MODEL_DIR
from engine.demo.embedding.pairs import Search, searches
from engine.demo.log import Log
from engine.llm import LLM

_SENTENCES = (
    "The train to Berlin leaves at nine.",
    "My sister plays the violin in an orchestra.",
    "The doctor told him to drink more water.",
    "A thief stole the painting from the museum.",
    "The recipe needs two eggs and a cup of flour.",
    "Our dog is afraid of thunder.",
    "The company fired a hundred workers.",
    "It will rain tomorrow afternoon.",
    "She repaired the broken bicycle herself.",
    "The children built a castle of sand on the beach.",
)
_QUESTIONS = (
    ("When does the train go?", 0),
    ("departure of the railway to the German capital", 0),
    ("Which instrument does my sister play?", 1),
    ("a musician in the family", 1),
    ("What did the doctor say?", 2),
    ("medical advice about fluids", 2),
    ("What was stolen from the museum?", 3),
    ("robbery of a work of art", 3),
    ("How many eggs does the recipe need?", 4),
    ("ingredients for baking a cake", 4),
    ("What is the dog afraid of?", 5),
    ("a pet that fears storms", 5),
    ("How many workers were fired by the company?", 6),
    ("people who lost their jobs", 6),
    ("Will it rain tomorrow?", 7),
    ("the weather forecast", 7),
    ("Who repaired the bicycle?", 8),
    ("fixing a bike", 8),
    ("What did the children build on the beach?", 9),
    ("kids who play by the sea", 9),
)
"""Of each sentence, one that shares words with it and one that shares none: of everyday topics,
which the model was not trained for."""


def everyday() -> list[Search]:
    return [Search(query, _SENTENCES, right) for query, right in _QUESTIONS]


def num_right(llm: LLM, asked: Sequence[Search], dimensions: int | None = None) -> int:
    """In how many searches the right sentence is the closest one."""
    texts = sorted({text for one in asked for text in (one.query, *one.documents)})
    found = llm.embed(texts, dimensions=dimensions)
    vectors = {
        text: np.array(output.outputs.embedding) for text, output in zip(texts, found, strict=True)
    }
    return sum(
        int(np.argmax([vectors[one.query] @ vectors[text] for text in one.documents])) == one.right
        for one in asked
    )


def shares(llm: LLM, num: int) -> dict[str, float]:
    """Shares of right answers, by what was asked. num: of held-out questions."""
    asked, words, others = searches(num), everyday()[::2], everyday()[1::2]
    return {
        "held_out": num_right(llm, asked) / len(asked),
        "held_out_32_dimensions": num_right(llm, asked, 32) / len(asked),
        "everyday_same_words": num_right(llm, words) / len(words),
        "everyday_other_words": num_right(llm, others) / len(others),
    }


def measure(folder: Path, num: int, log: Log) -> None:
    """Write accuracy.json."""
    found = shares(LLM(folder, num_threads=1), num)
    record = {"searches": num, **{name: round(share, 4) for name, share in found.items()}}
    (folder / "accuracy.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    log(f"the right one of ten sentences: {record}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="engine.demo.embedding.measure", description=__doc__)
    parser.add_argument("--model", type=Path, default=EMBEDDING_MODEL_DIR)
    parser.add_argument("--searches", type=int, default=500, help="held-out questions")
    options = parser.parse_args(argv)
    measure(options.model, options.searches, Log())


if __name__ == "__main__":
    main()
