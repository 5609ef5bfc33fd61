"""The tests of the ``openai`` package once more, with its previous major version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("test_openai_sdk", "test_openai_responses", "test_structured_outputs")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the previous major version and what it needs."""
    major = int(openai.__version__.partition(".")[0])
    folder = tmp_path_factory.mktemp("openai")
    wanted = f"openai>={major - 1},<{major}"
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", folder)
    try:
        subprocess.run([*install, wanted], capture_output=True, text=True, timeout=100, check=True)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{wanted} cannot be installed here in 100 s")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{wanted} cannot be installed here: {error.stderr.strip()[-200:]}")
    return folder


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_previous_major_works_as_well(previous: Path) -> None:
    files = [f"tests/e2e/on_one_gateway/{name}.py" for name in NAMES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(previous), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-6000:]
