"""How several processes share the tests, and that nothing of what they say is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distribution import TOGETHER, num_workers, units_of

ROOT = Path(__file__).parents[1]
FILES = {
    "test_a.py": """
        import os, pytest, time
        @pytest.fixture(scope="session")
        def pid(): return os.getpid()
        def test_fine(pid): assert pid == os.getpid()
        def test_wrong(): print("said before"); assert 1 == 2
        def test_skipped(): pytest.skip("why not")
        @pytest.mark.timeout(0.5)
        def test_hangs(): time.sleep(60)
        def test_after(pid, tmp_path): assert pid == os.getpid() and not list(tmp_path.iterdir())
    """,
    "test_b.py": """
        import os, signal
        def test_ends(): os.kill(os.getpid(), signal.SIGKILL)
        def test_goes_on(): pass
    """,
    "test_c.py": """
        def test_many(): pass
    """,
}


def run(folder: Path, *options: str, without: str = "") -> subprocess.CompletedProcess[str]:
    for name, text in FILES.items():
        if name == without:
            continue
        lines = text.splitlines()
        (folder / name).write_text("\n".join(line.removeprefix(" " * 8) for line in lines))
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"]
    command += [
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(folder),
        "-p",
        "tests.conftest",
    ]
    return subprocess.run(
        [*command, *options, str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("count", ["1", "2"])
def test_what_forks_say_is_told(tmp_path: Path, count: str) -> None:
    done = run(tmp_path, "-n", count, without="test_b.py" if count == "1" else "")
    outcomes = {
        "test_a.py::test_fine": "PASSED",
        "test_a.py::test_wrong": "FAILED",
        "test_a.py::test_hangs": "FAILED",
        "test_a.py::test_after": "PASSED",
        "test_c.py::test_many": "PASSED",
    }
    if count == "2":
        outcomes |= {"test_b.py::test_ends": "FAILED", "test_b.py::test_goes_on": "PASSED"}
        assert "its process has ended with signal 9" in done.stdout
    assert done.returncode == 1
    for name, outcome in outcomes.items():
        assert f"{outcome} {name}" in done.stdout, done.stdout + done.stderr
    assert "why not" in done.stdout
    assert "said before" in done.stdout
    assert "assert 1 == 2" in done.stdout
    assert "Timeout (>0.5s)" in done.stdout


def test_the_first_failure_may_end_it(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "2", "-x")
    assert done.returncode == 1
    assert re.search("stopping after [12] failures", done.stdout)  # both processes may have one


def test_what_takes_long_is_first_and_stays_whole() -> None:
    ids = ["a.py::one", "a.py::two", "b.py::one", "c.py::one", "c.py::two"]
    assert units_of(ids, {"c.py": 60, "b.py": 2}) == [[3, 4], [2], [0, 1]]


def test_a_folder_that_shares_a_server_stays_whole() -> None:
    folder = TOGETHER[0]
    ids = ["a.py::one", f"{folder}b.py::one", f"{folder}c.py::one"]
    seconds = {"a.py": 15, f"{folder}b.py": 10, f"{folder}c.py": 10}
    assert units_of(ids, seconds) == [[1, 2], [0]]


def test_how_many() -> None:
    assert num_workers("0") == 0
    assert num_workers("7") == 7
    assert 1 <= num_workers("auto") <= 4
