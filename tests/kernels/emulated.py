"""Kernels' own sources as libraries for the host, over ``emulation``: no GPU runs them, but they
compute what one would."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import build, cuda

EMULATION = Path(__file__).parent / "emulation"
INCLUDED = re.compile(r'^#include "(.*)"$', re.MULTILINE)
SHARED = re.compile(r"extern __shared__ [^;]*?(\w+)\[\];")
OPTIONS = (
    *("-x", "c++", "-std=c++20", "-O1", "-shared", "-Xcompiler", "-fPIC,-w"),
    # The libraries of a process have variables of the same names, each its own.
    *("-Xcompiler", "-fno-gnu-unique", "-Xlinker", "-Bsymbolic"),
)
_SHARED_HEADERS = ("common/arguments.h", "common/dtype.h")
MOST_KEPT = 4
"""Builds of a unit in the cache, for as many states of its sources."""


def library(unit: str, sources: Sequence[str], *, threads: int = 128, ctas: int = 1) -> ctypes.CDLL:
    """Compile ``emulation/<unit>.cpp`` with sources from ``kernels/csrc``, once for all runs.

    threads: the most of a CTA that is launched; ctas: the most of a cluster. Headers of
    ``emulation`` take the place of the kernels' own. Skips the test where there is no compiler.
    """
    return ctypes.CDLL(str(_build(unit, [*sources, f"{unit}.cpp"], threads, ctas)))


def native(
    sources: Sequence[str], *, threads: int = 128, ctas: int = 1, together: bool = True
) -> Any:
    """As ``kernels.cuda.native``, for tensors of a CPU: the ops of the sources' folder. Only those
    whose launches are in ``sources`` can be called.

    together: all files are compiled as one, which reads CUDA's headers once; not where two have a
    function of one name.
    """
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    folder = sources[0].partition("/")[0]
    objects = [_binding()]
    built = _build(
        folder, [*sources, f"{folder}/ops.cpp"], threads, ctas, objects, together=together
    )
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)  # launches that are not there are found missing when called
    try:
        return cuda.import_module(built)
    finally:
        sys.setdlopenflags(flags)


def _build(
    unit: str,
    sources: Sequence[str],
    threads: int,
    ctas: int,
    objects: Sequence[Path] = (),
    *,
    together: bool = True,
) -> Path:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    texts = _texts(sources)
    flags = [*OPTIONS, f"-DEMULATED_THREADS={threads}", f"-DEMULATED_CTAS={ctas}"]
    linked = [word for path in objects for word in ("-Xlinker", str(path))]  # no C++ source
    units = build.cache_dir() / "emulated" / unit
    folder = units / _fingerprint(texts, [*flags, *linked])
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / f"{unit}.so"
    with build.locked(units / "lock"):
        if not built.exists():
            _compile(texts, flags, built, linked, together=together)
        folder.touch()
        by_use = sorted(units.glob("*/"), key=lambda path: path.stat().st_mtime)
        for old in by_use[:-MOST_KEPT]:
            shutil.rmtree(old)
        return built


def _binding() -> Path:
    """The binding of ops to Python, compiled for tensors of a CPU."""
    names = ("binding/module.cpp", "binding/binder.h", "binding/torch.h")
    texts = {name: (build.SOURCES / name).read_text() for name in (*names, *_SHARED_HEADERS)}
    flags = ["-DSLUICE_EMULATED", "-Xcompiler", "-w,-fno-gnu-unique", torch.__version__]
    folder = build.cache_dir() / "emulated" / "binding" / _fingerprint(texts, flags)
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / "module.o"
    with build.locked(folder.parent / "lock"):
        if not built.exists():
            unfinished = folder / "unfinished.o"
            source = build.SOURCES / names[0]
            command = build.host_command(source, unfinished, build.find_nvcc(), *flags[:-1])
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            unfinished.rename(built)
    return built


def _texts(sources: Sequence[str]) -> dict[str, str]:
    """Each file that the compiler may read, by its path from the folder that includes start at."""
    texts: dict[str, str] = {}
    missing = [*sources, "first.h"]
    while missing:
        name = missing.pop()
        if name not in texts:
            own = EMULATION / name
            text = (own if own.exists() else build.SOURCES / name).read_text()
            texts[name] = SHARED.sub(r"auto* \1 = emulation::shared_memory;", text)
            missing += INCLUDED.findall(text)
    return texts


def _fingerprint(texts: dict[str, str], flags: Sequence[str]) -> str:
    """Of all that decides what is built: nvcc leaves the work to the compiler of the host."""
    parts = [*flags, *(part for item in sorted(texts.items()) for part in item)]
    compilers = [build.version_hash(name) for name in (build.find_nvcc(), "g++")]
    return hashlib.sha256("\0".join([*parts, *compilers]).encode()).hexdigest()[:24]


def _compile(
    texts: dict[str, str],
    flags: Sequence[str],
    built: Path,
    objects: Sequence[str],
    *,
    together: bool,
) -> None:
    with tempfile.TemporaryDirectory(dir=built.parent) as name:
        folder = Path(name)
        for file, text in texts.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(text)
        files = [file for file in texts if file.endswith((".cu", ".cpp"))]
        if together:
            whole = "".join(f'#include "{file}"\n' for file in files)
            files = ["whole.cpp"]
            (folder / files[0]).write_text(whole)
        command = [build.find_nvcc(), *flags, f"-I{folder}", "-include", str(folder / "first.h")]
        command += [*(str(folder / file) for file in files), *objects]
        command += ["-o", str(folder / built.name), *(build.torch_libraries() if objects else ())]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        (folder / built.name).rename(built)  # it appears whole or not at all
