"""The table of families in ``docs/models.md``: its cells, and that a run prints that one."""

from __future__ import annotations

from pathlib import Path

from tests.engine.models.families import CASES, FALLBACK_CASES, Case
from tests.engine.models.table import COLUMNS, Outcomes, cell, columns, rows

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"


def outcomes(cases: list[Case], **changed: bool) -> Outcomes:
    """Everything passed but for ``changed``, by the column: None of it ran."""
    made = Outcomes()
    for case in cases:
        for column in columns():
            made.passed[column, case.name] = changed.get(column, True)
    return made


def test_cells() -> None:
    cases = CASES[:2]
    made = outcomes(cases, logits=False)
    assert cell(made, "greedy", cases) == "✓"
    assert cell(made, "logits", cases) == "**fails**"
    del made.passed["greedy", cases[1].name], made.passed["int4", cases[1].name]
    assert cell(made, "greedy", cases) == "not run"
    assert cell(made, "int4", cases) == "✓", "one case of a family is enough"
    assert cell(Outcomes(), "int4", cases) == ""


def test_what_transformers_computes_shares_a_row_where_it_is_alike() -> None:
    made = outcomes([*CASES, *FALLBACK_CASES])
    made.passed["chunked", "opt"] = False
    last, other = rows(made)[-2:]
    assert [last[0], other[0]] in (["OPT", last[0]], [last[0], "OPT"])
    assert sum(row[1] == "transformers" for row in rows(made)) == 2


def test_the_document_has_a_row_of_each_family() -> None:
    text = DOCUMENT.read_text()
    head = "| " + " | ".join(["family", "runs on", *columns()]) + " |"
    assert head in text
    everything = outcomes(CASES)
    for case in FALLBACK_CASES:
        for column in set(columns()) - {"int4", "lora"}:
            everything.passed[column, case.name] = True
    for column in ("fp8", "int4"):
        del everything.passed[column, "gpt-oss"]  # whose experts are stored together
    for case in CASES:
        if case.has_states:
            del everything.passed["speculative", case.name]
    for row in rows(everything):
        assert "| " + " | ".join(row) + " |" in text, "python -m tests.engine.models.table"
    assert set(COLUMNS.values()) == set(columns())
