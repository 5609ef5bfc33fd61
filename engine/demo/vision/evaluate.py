"""Whether answers about held-out pictures are right."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.demo.vision.questions import Example


class Codec(Protocol):
    """The method that is needed of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Outcome:
    kind: str
    question: str
    answer: str
    wanted: str

    @property
    def right(self) -> bool:
        return self.answer == self.wanted


@dataclass(frozen=True)
class Accuracy:
    """Shares of right answers in 0..1, over all questions and per kind."""

    outcomes: list[Outcome]

    @property
    def overall(self) -> float:
        return sum(one.right for one in self.outcomes) / len(self.outcomes)

    def per_kind(self) -> dict[str, float]:
        grouped: dict[str, list[bool]] = defaultdict(list)
        for one in self.outcomes:
            grouped[one.kind].append(one.right)
        return {kind: sum(right) / len(right) for kind, right in grouped.items()}

    def table(self) -> str:
        """In Markdown."""
        rows = [f"| {kind} | {share:.1%} |" for kind, share in self.per_kind().items()]
        last = f"| **all** | {self.overall:.1%} |"
        return "\n".join(["| kind | right |", "| --- | ---: |", *rows, last])

    def save(self, path: Path) -> None:
        record = {
            "pictures": len(self.outcomes),
            "overall": round(self.overall, 4),
            "per_kind": {kind: round(share, 4) for kind, share in self.per_kind().items()},
        }
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def judged(
    asked: Sequence[Example], answers: Sequence[Sequence[int]], codec: Codec, end: int
) -> list[Outcome]:
    """Of the first question of each chat. An answer that does not end by itself is wrong. answers:
    token ids, with their ends."""
    outcomes = []
    for one, ids in zip(asked, answers, strict=True):
        question, wanted = one.turns[0]
        said = list(ids)
        text = codec.decode(said[: said.index(end)]) if end in said else "(no end)"
        outcomes.append(Outcome(one.kind, question, text, wanted))
    return outcomes
