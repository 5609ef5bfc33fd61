"""Every kernel compiles for every architecture, and the build cache keeps its promises."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import build

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
SOURCES = sorted(build.SOURCES.glob("*.cu"))
BINDINGS = sorted(build.SOURCES.glob("bind*.cpp"))


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of a core, which other work may share
@pytest.mark.parametrize("arch", build.ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_kernel_compiles_without_warnings(source: Path, arch: str, tmp_path: Path) -> None:
    command = build.nvcc_command(source, tmp_path / "out.o", arch, build.find_nvcc())
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr, result.stderr


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("binding", BINDINGS, ids=lambda path: path.stem)
def test_binding_fits_torch_and_the_kernels(
    binding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch for CPUs lacks one header that CUDA's own needs, and what a binding is linked to."""
    monkeypatch.setattr(sys, "path", sys.path[:])  # setuptools, which torch imports, adds to it
    macros = tmp_path / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    macros.parent.mkdir(parents=True)
    macros.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    command = build._binding_command(binding, tmp_path / "out.o", build.find_nvcc())
    command += ["-Xcompiler", "-fsyntax-only", f"-I{tmp_path}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_kernels_take_raw_pointers_only() -> None:
    for path in build.SOURCES.iterdir():
        if not path.name.startswith("bind"):
            text = path.read_text()
            assert "torch/" not in text, path
            assert "ATen" not in text, path


@needs_nvcc
def test_fingerprint_follows_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(build.SOURCES, tmp_path / "csrc")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "csrc")
    nvcc = build.find_nvcc()
    before = build._fingerprint("90a", "2.11", nvcc)
    assert build._fingerprint("80", "2.11", nvcc) != before
    assert build._fingerprint("90a", "2.12", nvcc) != before
    assert build._fingerprint("90a", "2.11", nvcc) == before
    (tmp_path / "csrc" / SOURCES[0].name).write_text("// changed")
    assert build._fingerprint("90a", "2.11", nvcc) != before


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    with pytest.raises(build.BuildError, match="nvcc was not found"):
        build.find_nvcc()


def test_compiler_errors_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"(?s)broken\.cu failed.*oh no"):
        build._compile(Path("broken.cu"), ["sh", "-c", "echo oh no >&2; exit 1"])


def test_a_cache_that_cannot_be_written_is_named_unless_what_is_needed_is_there(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_KERNEL_CACHE", str(read_only))
    monkeypatch.setattr(build, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(build, "_fingerprint", lambda *_: "missing")
    with pytest.raises(build.BuildError, match=r"cannot be written.*set SLUICE_KERNEL_CACHE"):
        build.library("90a")
    monkeypatch.setattr(build, "_fingerprint", lambda *_: "kept")
    assert build.library("90a") == read_only / "kept" / "sluice_kernels.so"


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_KERNEL_CACHE", "/somewhere")
    assert build.cache_dir() == Path("/somewhere")
    monkeypatch.delenv("SLUICE_KERNEL_CACHE")
    assert build.cache_dir().parts[-3:] == (".cache", "sluice", "kernels")
