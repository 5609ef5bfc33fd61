"""Which tests are collected with a GPU, without one, and by ``-m gpu``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    "test_whole.py": """
        import pytest
        pytestmark = [pytest.mark.usefixtures("tmp_path"), pytest.mark.gpu]
        def test_kernel(): ...
    """,
    "test_mixed.py": """
        import pytest
        @pytest.mark.gpu
        @pytest.mark.parametrize("number", range(3))
        def test_many(number): ...
        @pytest.mark.gpu
        class TestKernel:
            def test_one(self): ...
        @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
        def test_device(device): ...
    """,
    "test_none.py": "def test_plain(): ...",
}
PLAIN = {"test_none.py::test_plain", "test_mixed.py::test_device[cpu]"}
NEED_A_GPU = {
    "test_whole.py::test_kernel",
    *(f"test_mixed.py::test_many[{number}]" for number in range(3)),
    "test_mixed.py::TestKernel::test_one",
    "test_mixed.py::test_device[cuda]",
}
PLUGIN = """
import pytest
from tests.gpu_collection import Selection

def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.pluginmanager.register(Selection(config, gpu={gpu}))
"""


def collected(folder: Path, *options: str, gpu: bool) -> tuple[set[str], str]:
    for name, text in FILES.items():
        lines = text.splitlines()
        (folder / name).write_text("\n".join(line.removeprefix(" " * 8) for line in lines))
    (folder / "conftest.py").write_text(PLUGIN.format(gpu=gpu))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["-c", "/dev/null", "--rootdir", str(folder), "-o", f"pythonpath={ROOT}", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return {line for line in lines if "::" in line}, done.stdout


def test_without_a_gpu_they_are_left_out(tmp_path: Path) -> None:
    names, told = collected(tmp_path, gpu=False)
    assert names == PLAIN
    assert "left out 1 files of tests that need one, and some tests of 1 others" in told


def test_with_a_gpu_all_are_collected(tmp_path: Path) -> None:
    names, told = collected(tmp_path, gpu=True)
    assert names == PLAIN | NEED_A_GPU
    assert "left out" not in told


def test_gpu_alone(tmp_path: Path) -> None:
    assert collected(tmp_path, "-m", "gpu", gpu=True)[0] == NEED_A_GPU


@pytest.mark.parametrize("file", ["test_whole.py", "test_mixed.py"])
def test_a_file_that_is_named_is_collected(tmp_path: Path, file: str) -> None:
    names, told = collected(tmp_path, file, gpu=False)
    assert names == {name for name in PLAIN | NEED_A_GPU if name.startswith(file)}
    assert "left out" not in told
