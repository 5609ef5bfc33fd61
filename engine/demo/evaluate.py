"""Measures the accuracy of the demo model on held-out prompts of each kind, with any generator."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from engine.demo.data import KINDS, Example, examples
from engine.demo.template import render

MAX_TOKENS = 448
HELD_OUT_SEED = 7

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Generates greedily: `(prompts' token ids, max_tokens) -> generated token ids`, with end
tokens."""


class Codec(Protocol):
    """The methods that are needed of a tokenizer, as of `tokenizers.Tokenizer`."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def token_to_id(self, token: str) -> int | None: ...


@dataclass(frozen=True)
class Outcome:
    example: Example
    answer: str
    right: bool


@dataclass(frozen=True)
class Accuracy:
    """Shares of right answers in 0..1, over all prompts and per kind."""

    outcomes: list[Outcome]

    @property
    def overall(self) -> float:
        return sum(o.right for o in self.outcomes) / len(self.outcomes)

    def per_kind(self) -> dict[str, float]:
        grouped: dict[str, list[bool]] = defaultdict(list)
        for outcome in self.outcomes:
            grouped[outcome.example.kind].append(outcome.right)
        return {kind: sum(right) / len(right) for kind, right in grouped.items()}

    def table(self) -> str:
        """A Markdown table."""
        rows = [f"| {kind} | {share:.1%} |" for kind, share in self.per_kind().items()]
        return "\n".join(
            ["| kind | right |", "| --- | ---: |", *rows, f"| **all** | {self.overall:.1%} |"]
        )

    def wrong(self, kind: str, limit: int) -> list[Outcome]:
        return [o for o in self.outcomes if o.example.kind == kind and not o.right][:limit]

    def save(self, path: Path) -> None:
        record = {
            "prompts": len(self.outcomes),
            "overall": round(self.overall, 4),
            "per_kind": {kind: round(share, 4) for kind, share in self.per_kind().items()},
        }
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def held_out_examples(per_kind: int, seed: int = HELD_OUT_SEED) -> list[Example]:
    """`per_kind` prompts of each kind, the same on every machine."""
    return list(islice(examples("heldout", seed), per_kind * len(KINDS)))


def evaluate(generate: Generate, codec: Codec, held_out: Sequence[Example]) -> Accuracy:
    """Have `generate` answer all prompts at once, and return the outcomes in order of their kinds.

    An answer that does not end by itself is wrong.
    """
    end = codec.token_to_id("<|im_end|>")
    assert end is not None
    asked = sorted(held_out, key=lambda example: KINDS.index(example.kind))
    prompts = [_prompt_ids(codec, example) for example in asked]
    outcomes = []
    for example, ids in zip(asked, generate(prompts, MAX_TOKENS), strict=True):
        ended = end in ids
        answer = codec.decode(ids[: ids.index(end)] if ended else ids)
        outcomes.append(Outcome(example, answer, ended and example.check(answer)))
    return Accuracy(outcomes)


def _prompt_ids(codec: Codec, example: Example) -> list[int]:
    text = render(example.prompt, example.tools, add_generation_prompt=True)
    return list(codec.encode(text, add_special_tokens=False).ids)
