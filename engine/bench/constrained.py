"""``python -m engine.bench.constrained``: measures what grammars cost, against rows without one.

Prints one JSON line for each kind of grammar. No grammar ends before ``--tokens``. Except for ``one
schema``, every row of every run has a grammar that was not compiled before. Runs of all kinds take
turns, and the best one of each counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from statistics import mean, median
from typing import Any

import msgspec

from engine.demo import MODEL_DIR
from engine.llm import LLM, SamplingParams, StructuredOutputs, TokensPrompt
from engine.sampling_params import RequestOutputKind

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
_PROMPT_LEN = 32


class Measurement(msgspec.Struct, frozen=True):
    """One JSON line."""

    kind: str
    rows: int
    ttft_ms: float
    """Time to the first token, compiling included; the median of the rows."""
    tpot_ms: float
    """Time of each further token of a row; the mean."""
    out_tok_s: float
    cost: float
    """``tpot_ms`` over that of plain decoding, less one."""


Kind = Callable[[int], StructuredOutputs | None]
"""The grammar with this number."""


def _schema(number: int) -> StructuredOutputs:
    people = {"title": str(number), "type": "array", "items": _PERSON, "minItems": 10_000}
    return StructuredOutputs(json=json.dumps(people))


KINDS: dict[str, Kind] = {
    "plain": lambda number: None,
    "one schema": lambda number: _schema(0),
    "a schema for each": _schema,
    "every second row": lambda number: _schema(number) if number % 2 else None,
    "regex": lambda number: StructuredOutputs(regex=f"({number}[^0-9]){{700}}"),
}


def measure(llm: LLM, rows: int, num_tokens: int, repeats: int) -> Iterator[Measurement]:
    numbers = itertools.count(1)
    best: dict[str, Measurement] = {}
    for repeat in range(repeats + 1):
        for name, kind in KINDS.items():
            found = _run(llm, name, [kind(next(numbers)) for _ in range(rows)], num_tokens)
            known = best.get(name)
            # The first run is a warm-up.
            if repeat and (known is None or found.tpot_ms < known.tpot_ms):
                best[name] = found
    for found in best.values():
        cost = found.tpot_ms / best["plain"].tpot_ms - 1
        yield msgspec.structs.replace(found, cost=round(cost, 3))


def _run(
    llm: LLM, name: str, grammars: list[StructuredOutputs | None], num_tokens: int
) -> Measurement:
    params = [
        SamplingParams(
            seed=seed,
            ignore_eos=True,
            max_tokens=num_tokens,
            structured_outputs=grammar,
            output_kind=RequestOutputKind.DELTA,
        )
        for seed, grammar in enumerate(grammars)
    ]
    prompts = [
        TokensPrompt(prompt_token_ids=[65 + i % 26] * _PROMPT_LEN) for i in range(len(params))
    ]
    firsts: dict[str, float] = {}
    lasts: dict[str, float] = {}
    counts: dict[str, int] = {}
    began = time.perf_counter()
    for result in llm.stream(prompts, params):
        now = time.perf_counter()
        firsts.setdefault(result.request_id, now)
        lasts[result.request_id] = now
        num_new = len(result.outputs[0].token_ids)
        counts[result.request_id] = counts.get(result.request_id, 0) + num_new
    took = time.perf_counter() - began
    assert set(counts.values()) == {num_tokens}, "a grammar has ended"
    tpot_s = mean((lasts[i] - first) / (num_tokens - 1) for i, first in firsts.items())
    return Measurement(
        name,
        len(grammars),
        ttft_ms=round((median(firsts.values()) - began) * 1e3, 2),
        tpot_ms=round(tpot_s * 1e3, 3),
        out_tok_s=round(sum(counts.values()) / took, 1),
        cost=0.0,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.bench.constrained", description=__doc__)
    parser.add_argument("--model", default=str(MODEL_DIR), help="default: the bundled demo model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=128, help="generated in each row")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--load-format", default="auto")
    asked = parser.parse_args(arguments)
    options: dict[str, Any] = {"load_format": asked.load_format}
    llm = LLM(
        asked.model,
        max_num_seqs=max(asked.rows),
        max_model_len=_PROMPT_LEN + asked.tokens,
        num_gpu_blocks_override=max(asked.rows) * (asked.tokens + 2 * _PROMPT_LEN) // 16 + 16,
        **options,
    )
    for rows in asked.rows:
        for found in measure(llm, rows, asked.tokens, asked.repeats):
            print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
