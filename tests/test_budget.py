"""What the budget's keeper measures, and when it fails a run."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.budget import (
    POSTGRES,
    PYTEST,
    TABLE,
    Costs,
    as_toml,
    compared,
    folder_of,
    renewed,
    tree_cpu_s,
    work_s,
)

ROOT = Path(__file__).parents[1]
TABLE_OF_TWO = {"work_s": 0.1, "cpu_s": {"tests/a": 10.0, "tests/b": 100.0}}


def costs(work_s: float = 0.1, **cpu_s: float) -> Costs:
    found = Costs(works_s=[work_s])
    for name, cost in cpu_s.items():
        found.cpu_s[f"tests/{name}"] = cost
    return found


@pytest.mark.parametrize(
    ("measured", "over"),
    [
        (costs(a=10, b=100), []),
        (costs(a=1, b=141), ["tests/b", "all"]),
        (costs(a=1, b=139), ["all"]),
        (costs(a=22.9, b=100), []),
        (costs(a=23.1, b=100), ["tests/a"]),
        (costs(a=20, b=118), ["all"]),
        (costs(0.2, a=40, b=220), []),  # on a machine that is half as fast
        (costs(0.05, a=1, b=71), ["tests/b", "all"]),
        (costs(a=1, c=11), ["tests/c"]),  # a folder without a budget
    ],
)
def test_a_folder_a_third_over_and_a_sum_somewhat_over(measured: Costs, over: list[str]) -> None:
    lines, is_over = compared(measured, TABLE_OF_TWO)
    assert [line.split()[0] for line in lines if line.endswith("OVER")] == over
    assert is_over == bool(over)


def test_the_costs_of_all_processes_and_one_server() -> None:
    whole = Costs()
    for number in (1, 3):
        part = costs(number / 10, a=number)
        part.cpu_s[POSTGRES] = number
        part.seconds["tests/a/test_x.py"] = number
        whole.add(part)
    assert whole.cpu_s == {"tests/a": 4, POSTGRES: 3}
    assert whole.seconds == {"tests/a/test_x.py": 4}
    assert whole.works_s == [0.1, 0.3]


def test_what_is_recorded_is_what_is_compared() -> None:
    measured = costs(0.25, a=12.34, b=5)
    measured.seconds = {"tests/a/test_long.py": 60, "tests/a/test_short.py": 1}
    table = tomllib.loads(as_toml(measured))
    assert table["seconds"] == {"tests/a/test_long.py": 60}
    assert table["cpu_s"] == {"tests/a": 12.3, "tests/b": 5.0}
    assert not compared(measured, table)[1]


def test_folders_that_were_not_run_keep_their_budget() -> None:
    table: dict[str, Any] = TABLE_OF_TWO | {
        "cpu_s": {"tests/a": 10.0, "tests/b": 100.0, PYTEST: 20.0},
        "seconds": {"tests/a/test_gone.py": 9, "tests/b/test_kept.py": 9},
    }
    measured = costs(0.2, a=30)  # on a machine that is half as fast
    measured.cpu_s[PYTEST] = 3
    measured.seconds["tests/a/test_new.py"] = 5
    found = renewed(table, measured)
    assert found.cpu_s == {"tests/a": 30, "tests/b": 200, PYTEST: 40}
    assert found.seconds == {"tests/b/test_kept.py": 9, "tests/a/test_new.py": 5}


def test_the_table_names_folders_and_files_that_exist() -> None:
    table = tomllib.loads(TABLE.read_text())
    assert all((ROOT / name).is_dir() for name in table["cpu_s"] if name.startswith("tests"))
    assert [name for name in table["seconds"] if not (ROOT / name).is_file()] == []


def test_programs_count_while_they_run_and_afterwards() -> None:
    code = "import time\nwhile time.process_time() < 0.8: pass\nprint('done', flush=True)\ninput()"
    before = tree_cpu_s(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        with_it = tree_cpu_s(os.getpid())
        assert with_it - before > 0.75
        # What other tests have started may take time meanwhile, but not so much between two looks.
        assert with_it - tree_cpu_s(os.getpid(), without=program.pid) > 0.7
        program.stdin.write(b"\n")
    assert tree_cpu_s(os.getpid()) - before > 0.75
    assert work_s() > 0


def test_folders() -> None:
    assert folder_of("tests/gateway/web/test_page.py") == "tests/gateway"
    assert folder_of("tests/test_budget.py") == "tests"
