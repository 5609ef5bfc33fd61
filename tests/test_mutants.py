"""The mutation runner changes what it says, finds what no test notices, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import mutants

SOURCE = '''
"""A docstring that says 1 and not 2."""
LIMIT = 3


def clamp(x: int = 5, *, low: bool = False) -> int:
    if x > LIMIT and not low:
        return min(x, 7) - x
    return x


async def close(self) -> None:
    self.open -= 1
    await self.stop()
    raise ValueError(f"{self.open + 1} left")
'''
CHANGED = {
    "if (not (x > LIMIT and (not low))):",
    "if (x > LIMIT or not low):",
    "if (x >= LIMIT) and not low:",
    "if x > LIMIT and (low):",
    "return None",
    "return (min(x, 7) + x)",
    "return max(x, 7) - x",
    "return min(x, 8) - x",
    "self.open += 1",
    "self.open -= 2",
    "pass",
}
RATES = {
    "engine/scheduler/fair_share.py": [
        "tests/engine/scheduler/test_fair_share.py",
        "tests/engine/scheduler/test_claims.py",
        "tests/engine/scheduler/test_fair_share_machine.py",
    ],
    "engine/scheduler/scheduler.py": ["tests/engine/scheduler", "tests/engine/test_core.py"],
    "engine/scheduler/heap.py": ["tests/engine/scheduler/test_heap.py"],
    "engine/cache/manager.py": [
        "tests/engine/cache",
        "tests/engine/scheduler/test_state_machine.py",
    ],
    "engine/sampling/sampler.py": ["tests/engine/sampling"],
    "engine/spec/rejection.py": ["tests/engine/spec/test_rejection.py"],
    "grammar/compiler.py": ["tests/grammar/test_compiler.py"],
    "gateway/answers/chat.py": ["tests/gateway/answers", "tests/gateway/test_wire_cases.py"],
    "gateway/responses/events.py": ["tests/gateway/responses", "tests/gateway/test_wire_cases.py"],
}
"""Modules whose faults must be noticed, and which tests are to."""
LEAST = 0.75
"""The part of a small sample that is killed at least; README.md says what the others are."""


def test_one_thing_is_changed_at_a_time() -> None:
    lines = SOURCE.splitlines()
    found = set()
    for mutant in mutants(SOURCE):
        changed = mutant.text.splitlines()
        assert len(changed) == len(lines)
        (place,) = (i for i, line in enumerate(lines) if changed[i] != line)
        assert mutant.first == place + 1
        found.add(changed[place].strip())
    assert found == CHANGED


def run(
    *arguments: str, folder: Path, temporary: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.mutants", *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    if temporary is not None:
        env["TMPDIR"] = str(temporary)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_survivors_are_printed_and_tests_that_add_nothing(tmp_path: Path) -> None:
    module = (
        "def larger(a, b):\n    while a != b:\n        return a if a > b else b\n    return a\n"
    )
    (tmp_path / "larger.py").write_text(module)
    tests = "from larger import larger\n\n\n"
    tests += "def test_it():\n    assert larger(1, 2) == 2\n\n\ndef test_again():\n    test_it()\n"
    (tmp_path / "test_larger.py").write_text(tests)
    (tmp_path / "pytest.ini").touch()
    copies = tmp_path / "copies"
    copies.mkdir()
    ran = run(
        "larger.py", "--tests", "test_larger.py", "--every", folder=tmp_path, temporary=copies
    )
    assert ran.stdout.count("\n+") == ran.returncode == 2, ran.stderr  # a >= b, return None
    assert "+    return None" in ran.stdout
    assert ran.stdout.count("adds nothing: test_larger.py::test_") == 1
    assert (tmp_path / "larger.py").read_text() == module
    assert not any(copies.iterdir())


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", RATES)
def test_faults_are_noticed(module: str) -> None:
    sample = 30
    root = Path(__file__).parents[1]
    ran = run(module, "--tests", *RATES[module], "--sample", str(sample), folder=root)
    assert ran.returncode <= (1 - LEAST) * sample, ran.stdout
