"""The text the demo model learns from, generated: the same seed gives the same chats."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle

from engine.demo.data.chats import KINDS, held_out_example, training_example
from engine.demo.data.example import Example, Split

__all__ = ["KINDS", "Example", "Split", "examples"]


def examples(split: Split, seed: int) -> Iterator[Example]:
    """Chats without end. Held-out ones go through `KINDS` in turn and never occur in training."""
    rng = random.Random(f"{split} {seed}")
    if split == "train":
        while True:
            yield training_example(rng)
    for kind in cycle(KINDS):
        yield held_out_example(rng, kind)
