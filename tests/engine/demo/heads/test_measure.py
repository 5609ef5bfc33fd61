"""The bundled heads are worth having, on prompts they were not trained on."""

from __future__ import annotations

import pytest

from engine.demo import MODEL_DIR
from engine.demo.data import KINDS
from engine.demo.evaluate import HELD_OUT_SEED
from engine.demo.heads import HEADS_DIR
from engine.demo.heads.answers import Prompt, draw_prompts
from engine.demo.heads.measure import Measured, Tally, measure, table


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return draw_prompts(MODEL_DIR, "heldout", HELD_OUT_SEED, 50)


# Tokens a step, of which one is the target's own; all prompts together.
@pytest.mark.parametrize(("name", "least"), [("eagle3", 3.1), ("eagle", 3.1), ("suffix", 1.1)])
@pytest.mark.nightly
def test_tokens_a_step(prompts: list[Prompt], name: str, least: float) -> None:
    measured = measure(name, prompts, 4, device="cpu", num_threads=1)
    assert set(measured.tallies) == set(KINDS)
    assert least <= measured.all.tokens_per_step <= 5


def test_the_heads_are_small() -> None:
    files = [f for name in ("eagle3", "eagle") for f in (HEADS_DIR / name).iterdir()]
    assert sum(file.stat().st_size for file in files) <= 6e6


def test_a_row_for_each_kind_of_task() -> None:
    one = Measured()
    one.tallies["fact"] = Tally(9, 3)
    one.tallies["list"] = Tally(1, 1)
    lines = table({"eagle3": one}).splitlines()
    assert lines[0] == "| task | eagle3 |"
    assert "| fact | 3.00 |" in lines
    assert lines[-1] == "| **all** | **2.50** |"
    assert len(lines) == len(KINDS) + 3
