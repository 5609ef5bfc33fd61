from __future__ import annotations

from itertools import islice

import numpy as np

from engine.demo import MODEL_DIR
from engine.demo.heads.answers import Answer, answer, batches, draw_prompts
from engine.llm import LLM


def answers(*lengths: tuple[int, int]) -> list[Answer]:
    return [Answer("chat", list(range(1, p + a + 1)), p) for p, a in lengths]


def test_prompts_come_from_the_split_and_are_reproducible() -> None:
    prompts = draw_prompts(MODEL_DIR, "heldout", 5, 30)
    assert prompts == draw_prompts(MODEL_DIR, "heldout", 5, 30)
    assert len({prompt.kind for prompt in prompts}) > 5
    assert prompts != draw_prompts(MODEL_DIR, "heldout", 6, 30)


def test_an_answer_follows_its_prompt() -> None:
    llm = LLM(MODEL_DIR, device="cpu", skip_tokenizer_init=True)
    prompts = draw_prompts(MODEL_DIR, "heldout", 5, 3)
    for prompt, one in zip(prompts, answer(llm, prompts), strict=True):
        assert one.token_ids[: one.num_prompt_tokens] == prompt.token_ids
        assert len(one.token_ids) > one.num_prompt_tokens
        assert one.kind == prompt.kind


def test_batches_go_round_and_keep_to_their_size() -> None:
    rows = answers((3, 4), (40, 5), (2, 2), (100, 30), (6, 6))
    seen = 0
    for batch in islice(batches(rows, 128, seed=0), 40):
        assert batch.token_ids.size <= 128 or len(batch.token_ids) == 1
        assert batch.token_ids.shape == batch.said.shape
        for ids, said in zip(batch.token_ids, batch.said, strict=True):
            length = int((ids > 0).sum())
            assert (ids[:length] == np.arange(1, length + 1)).all()
            first, last = np.flatnonzero(said)[[0, -1]]
            assert last == length - 1
            assert (int(first), length - int(first)) in {(3, 4), (40, 5), (2, 2), (100, 30), (6, 6)}
            seen += 1
    assert seen > 2 * len(rows)
