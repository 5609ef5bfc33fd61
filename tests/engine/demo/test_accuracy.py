"""The bundled model answers held-out prompts through our own engine."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from engine.demo import MODEL_DIR
from engine.demo.evaluate import evaluate, held_out_examples
from engine.llm import LLM, SamplingParams

PER_KIND = 12


@pytest.mark.nightly
def test_hardly_any_is_wrong() -> None:
    llm = LLM(model=str(MODEL_DIR), dtype="float32")

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, skip_special_tokens=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
        return [list(output.outputs[0].token_ids) for output in outputs]

    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    accuracy = evaluate(generate, tokenizer, held_out_examples(PER_KIND))
    assert accuracy.overall >= 0.95, accuracy.table()
    assert min(accuracy.per_kind().values()) >= 0.8, accuracy.table()
