"""``python3 -m engine.demo.vision.measure``: how often our engine answers right with the demo model
that sees, about held-out pictures in any size, drawn with the fonts of this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.demo.vision import VISION_MODEL_DIR
from engine.demo.vision.batches import held_out, split_of
from engine.demo.vision.evaluate import Accuracy, Outcome
from engine.demo.vision.fonts import FOLDERS
from engine.demo.vision.questions import KINDS, Example
from engine.llm import LLM, SamplingParams


def measure(llm: LLM, examples: list[Example]) -> Accuracy:
    """Greedy answers to the first question of each chat."""
    params = SamplingParams(temperature=0, max_tokens=40)
    outcomes = []
    for one, output in zip(
        examples, llm.chat([_messages(e) for e in examples], params), strict=True
    ):
        question, wanted = one.turns[0]
        (answer,) = output.outputs
        text = answer.text if answer.finish_reason == "stop" else "(no end)"
        outcomes.append(Outcome(one.kind, question, text, wanted))
    return Accuracy(outcomes)


def _messages(example: Example) -> list[dict[str, object]]:
    shown = [{"type": "image", "image": picture} for picture in example.pictures]
    asked = {"type": "text", "text": example.turns[0][0]}
    return [{"role": "user", "content": [*shown, asked]}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=VISION_MODEL_DIR)
    parser.add_argument("--fonts", type=Path, nargs="+", default=list(FOLDERS))
    parser.add_argument("--per-kind", type=int, default=40)
    options = parser.parse_args()
    split = split_of("heldout", options.fonts)
    asked = [one for kind in KINDS for one in held_out(kind, options.per_kind, split)]
    accuracy = measure(LLM(model=str(options.model), dtype="float32"), asked)
    print(accuracy.table())
    for one in accuracy.outcomes:
        if not one.right:
            print(f"{one.kind}: {one.question!r} -> {one.answer!r}, not {one.wanted!r}")


if __name__ == "__main__":
    main()
