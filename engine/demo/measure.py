"""`python3 -m engine.demo.measure`: measures the accuracy of a model's folder with `transformers`.

Writes accuracy.json into the folder. `evaluate.py` measures it with any other generator.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from engine.demo import MODEL_DIR
from engine.demo.data import KINDS
from engine.demo.evaluate import Accuracy, Outcome, evaluate, held_out_examples
from engine.demo.log import Log
from engine.demo.vocabulary import MAX_LENGTH

_ROWS_PER_BATCH = 512


class Greedy:
    """The most likely answers of a saved model, in float32, batched by `transformers`."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self._model = _load(folder).to(device).eval()

    def __call__(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Token ids after each prompt, the longest prompts together."""
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        answers: list[list[int]] = [[] for _ in prompts]
        for at in range(0, len(order), _ROWS_PER_BATCH):
            rows = order[at : at + _ROWS_PER_BATCH]
            batch = self._batch([prompts[i] for i in rows], max_tokens)
            for i, answer in zip(rows, batch, strict=True):
                answers[i] = answer
        return answers

    def _batch(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Pads on the left. An answer that ends early is followed by padding."""
        model, length = self._model, max(map(len, prompts))
        pads = [length - len(prompt) for prompt in prompts]
        ids = [[model.config.pad_token_id] * n + p for n, p in zip(pads, prompts, strict=True)]
        mask = [[0] * n + [1] * (length - n) for n in pads]
        with torch.inference_mode():
            out = model.generate(
                input_ids=torch.tensor(ids, device=model.device),
                attention_mask=torch.tensor(mask, device=model.device),
                max_new_tokens=min(max_tokens, MAX_LENGTH - length),
                do_sample=False,
                temperature=None,
                top_p=None,
            )
        answers: list[list[int]] = out[:, length:].tolist()
        return answers


def _load(folder: Path) -> Any:
    """Any: mypy cannot resolve the mixins and wrappers that `transformers` models are made of."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def measure(folder: Path, per_kind: int, log: Log, device: str = "cpu") -> Accuracy:
    """Ask `per_kind` held-out prompts of each kind, write accuracy.json, and log wrong answers."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    accuracy = evaluate(Greedy(folder, device), tokenizer, held_out_examples(per_kind))
    accuracy.save(folder / "accuracy.json")
    for kind in KINDS:
        first = next(o for o in accuracy.outcomes if o.example.kind == kind)
        log(f"[{kind}] {_asked(first)!r} -> {first.answer!r}")
    for kind in KINDS:
        for outcome in accuracy.wrong(kind, 5):
            answer = outcome.example.messages[-1]
            expected = answer.get("tool_calls") or answer["content"]
            log(f"WRONG [{kind}] {_asked(outcome)!r} -> {outcome.answer[:300]!r}, not {expected!r}")
    log("accuracy on held-out prompts\n" + accuracy.table())
    return accuracy


def _asked(outcome: Outcome) -> str:
    return str(outcome.example.prompt[-1]["content"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="engine.demo.measure", description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="a Hugging Face folder")
    parser.add_argument("--per-kind", type=int, default=100, help="held-out prompts of each kind")
    parser.add_argument("--device", default="cpu", choices=("cuda", "cpu"))
    options = parser.parse_args(argv)
    measure(options.model, options.per_kind, Log(), options.device)


if __name__ == "__main__":
    main()
