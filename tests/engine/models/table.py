"""``python -m tests.engine.models.table``: run the families' tests, print their results as the
table of ``docs/models.md``."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.engine.models.families import CASES, FALLBACK_CASES, Case

COLUMNS = {
    "test_logits[": "logits",
    "test_logits_of_chunks[": "chunked",
    "test_logits_after_a_prefix_hit[": "prefix",
    "test_greedy_text_of_a_batch[": "greedy",
    "test_fp8_while_loading[": "fp8",
    "test_fp8_while_transformers_loads[": "fp8",
    "test_int4_checkpoint[": "int4",
    "test_equals_the_merged_weights[": "lora",
    "test_greedy_text_with_drafts[": "speculative",
}
"""By how the test's id begins."""
ONE_OF_A_FAMILY = ("fp8", "int4", "lora", "speculative")
"""Columns whose tests run on one case of each family at least, or on none."""


class Outcomes:
    """A plugin that remembers, by column and case, whether every phase passed."""

    def __init__(self) -> None:
        self.passed: dict[tuple[str, str], bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.rpartition("::")[2]
        case = test.partition("[")[2].rstrip("]")
        for beginning, column in COLUMNS.items():
            if test.startswith(beginning):
                at = column, case
                self.passed[at] = self.passed.get(at, True) and report.outcome == "passed"


def cell(outcomes: Outcomes, column: str, cases: list[Case]) -> str:
    results = [outcomes.passed.get((column, case.name)) for case in cases]
    if column in ONE_OF_A_FAMILY:
        results = [result for result in results if result is not None]
        if not results:
            return ""
    if None in results:
        return "not run"
    return "✓" if all(results) else "**fails**"


def rows(outcomes: Outcomes) -> list[list[str]]:
    """One of each native family; those that transformers computes together where they are equal."""
    by_family: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for cases, runs_on in ((CASES, "native"), (FALLBACK_CASES, "transformers")):
        for case in cases:
            by_family[case.family, runs_on].append(case)
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (family, runs_on), cases in by_family.items():
        cells = [cell(outcomes, column, cases) for column in columns()]
        own = family if runs_on == "native" else ""
        alike[own, runs_on, *cells].append(family.removesuffix("ForCausalLM"))
    return [[", ".join(families), *key[1:]] for key, families in alike.items()]


def columns() -> list[str]:
    return list(dict.fromkeys(COLUMNS.values()))


def main() -> int:
    outcomes = Outcomes()
    folder = Path(__file__).parent
    folders = (folder, folder.parent / "quant", folder.parent / "lora")
    tests = [folder / "test_families.py" for folder in folders]
    code = pytest.main(["-q", "--no-header", *map(str, tests)], plugins=[outcomes])
    print("\n| " + " | ".join(["family", "runs on", *columns()]) + " |")
    print("|---" * (2 + len(columns())) + "|")
    for row in rows(outcomes):
        print("| " + " | ".join(row) + " |")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
