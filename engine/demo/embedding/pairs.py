"""Pairs of texts that belong together, generated: what the embedding model learns from, and what it
is measured by."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from engine.demo.data import facts, fun, knowledge, stories
from engine.demo.data.example import Split, Turn, held_out

MAX_WORDS = 40
_CROPPED_SHARE = 0.4


@dataclass(frozen=True)
class Pair:
    query: str
    document: str


@dataclass(frozen=True)
class Search:
    """A question, and sentences of which one answers it."""

    query: str
    documents: tuple[str, ...]
    right: int


def pairs(split: Split, seed: int) -> Iterator[Pair]:
    """Pairs without end. Questions whose subject is held out are in no pair of the other split."""
    rng = random.Random(f"pairs {split} {seed}")
    while True:
        if split == "train" and rng.random() < _CROPPED_SHARE:
            source = rng.choice((facts.turns, knowledge.turns, fun.turns, stories.turns))
            sentence = rng.choice(_sentences(_text(rng.choice(source(rng)))))
            yield Pair(_cropped(rng, sentence), sentence)
            continue
        turn = rng.choice((facts.turns, knowledge.turns))(rng)[0]  # The others need this one.
        if held_out(turn.key) == (split == "heldout") and len(_text(turn).split()) > 2:
            yield Pair(turn.inputs[0]["content"], _text(turn))


def searches(num: int, seed: int = 7) -> list[Search]:
    """Held-out questions with ten sentences each: the answer, five answers to other questions and
    four that share a word with the question."""
    rng = random.Random(f"searches {seed}")
    source = pairs("heldout", seed)
    pool = [next(source) for _ in range(4000)]
    documents = sorted({pair.document for pair in pool})
    found: list[Search] = []
    for pair in pool:
        words = _words(pair.query)
        # One of the same words in another order would be right, too.
        others = [text for text in documents if _words(text) != _words(pair.document)]
        alike = [text for text in others if words & _words(text)]
        chosen = rng.sample(alike, min(4, len(alike)))
        rest = [text for text in others if text not in chosen]
        texts = [*chosen, *rng.sample(rest, 9 - len(chosen)), pair.document]
        rng.shuffle(texts)
        search = Search(pair.query, tuple(texts), texts.index(pair.document))
        if all(search.query != one.query for one in found):
            found.append(search)
        if len(found) == num:
            return found
    raise AssertionError("too few held-out questions")


def _text(turn: Turn) -> str:
    return str(turn.output["content"])


def _sentences(text: str) -> list[str]:
    parts = text.replace("\n", " ").replace("! ", "!\0").replace(". ", ".\0").split("\0")
    return [" ".join(part.split()[:MAX_WORDS]) for part in parts if part.strip()] or [text]


def _cropped(rng: random.Random, sentence: str) -> str:
    """A few of a sentence's words, in their order."""
    words = sentence.split()
    telling = [place for place, word in enumerate(words) if _words(word)] or [0]
    kept = rng.randint(0, len(words) // 2)
    places = {rng.choice(telling), *rng.sample(range(len(words)), kept)}
    return " ".join(words[place] for place in sorted(places))


_COMMON = frozenset(
    {
        *(
            "",
            "a",
            "an",
            "the",
            "is",
            "of",
            "in",
            "to",
            "what",
            "which",
            "who",
            "how",
            "do",
            "does",
        ),
        *("are", "it", "and", "for", "me", "tell"),
    }
)


def _words(text: str) -> set[str]:
    return {word.strip(".,?!:;\"'").lower() for word in text.split()} - _COMMON
