"""Kernels' own sources as libraries for the host, over ``emulation``: no GPU runs them, but they
compute what one would."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernels import build

EMULATION = Path(__file__).parent / "emulation"
SHARED = re.compile(r"extern __shared__ [^;]*?(\w+)\[\];")
OPTIONS = (
    *("-x", "c++", "-std=c++20", "-O1", "-shared", "-Xcompiler", "-fPIC,-w"),
    # The libraries of a process have variables of the same names, each its own.
    *("-Xcompiler", "-fno-gnu-unique", "-Xlinker", "-Bsymbolic"),
)


def library(
    folder: Path, unit: str, sources: Sequence[str], *, threads: int = 128, ctas: int = 1
) -> ctypes.CDLL:
    """Compile ``emulation/<unit>.cpp`` with files of ``kernels/csrc``, in ``folder``.

    threads: the most of a CTA that is launched; ctas: the most of a cluster. Headers of
    ``emulation`` take the place of the kernels' own. Skips the test where there is no compiler.
    """
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    for name in sources:
        text = (build.SOURCES / name).read_text()
        text = SHARED.sub(r"auto* \1 = emulation::shared_memory;", text)
        (folder / name).write_text(text)
    for path in EMULATION.iterdir():
        shutil.copy(path, folder)
    built = folder / f"{unit}.so"
    options = [*OPTIONS, f"-DEMULATED_THREADS={threads}", f"-DEMULATED_CTAS={ctas}"]
    options += ["-include", str(folder / "cuda.h")]
    files = [name for name in (*sources, f"{unit}.cpp") if not name.endswith("h")]
    command = [build.find_nvcc(), *options, *(str(folder / name) for name in files)]
    command += ["-o", str(built)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return ctypes.CDLL(str(built))
