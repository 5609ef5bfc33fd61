"""The tests of the ``openai`` package once more, with its previous major version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the previous major version and what it needs."""
    major = int(openai.__version__.partition(".")[0])
    folder = tmp_path_factory.mktemp("openai")
    wanted = f"openai>={major - 1},<{major}"
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", folder)
    done = subprocess.run([*install, wanted], capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"{wanted} cannot be installed here: {done.stderr.strip()[-200:]}")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", ["test_openai_sdk", "test_openai_responses", "test_structured_outputs"]
)
def test_the_previous_major_works_as_well(previous: Path, name: str) -> None:
    path = os.pathsep.join([str(previous), str(ROOT)])
    command = (
        sys.executable,
        "-m",
        "pytest",
        f"tests/e2e/{name}.py",
        "-q",
        "-p",
        "no:cacheprovider",
    )
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-6000:]
