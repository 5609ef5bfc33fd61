"""Every kernel compiles for every architecture, and the build cache keeps its promises."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kernels import build

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
SOURCES = sorted(build.SOURCES.rglob("*.cu"))
CHEAPEST = "host_values", "80"
HOST_SOURCES = sorted(build.host_sources())


@functools.cache
def fast_compile_flags() -> tuple[str, ...]:
    """Those that skip most of the optimizer's work, where nvcc knows them: from CUDA 12.9 on."""
    usage = subprocess.run([build.find_nvcc(), "--help"], capture_output=True, text=True).stdout
    return ("--Ofast-compile", "max") if "--Ofast-compile" in usage else ()


def has_warpgroups(source: Path) -> bool:
    """Whether a kernel multiplies by warpgroups, or moves registers between them."""
    text = source.read_text()
    headers = [build.SOURCES / name for name in re.findall('#include "(.*)"', text)]
    return re.search("wgmma|give_up_registers<", text) is not None or any(
        map(has_warpgroups, headers)
    )


def compile_kernel(source: Path, arch: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Optimized only where the optimizer can find something wrong: it serializes products of
    warpgroups that it does not understand. All else is found by the front end and the assembler, in
    code that is not optimized as well, and in a third of the time. The host's part is the same for
    all architectures and is compiled for the newest."""
    command = build.nvcc_command(source, tmp_path / "out", arch, build.find_nvcc())
    if arch != build.ARCHITECTURES[-1]:
        command[command.index("-c")] = "-cubin"
    if arch == "80" or not has_warpgroups(source):
        command += fast_compile_flags()
    return subprocess.run(command, capture_output=True, text=True, check=False)


def all_but_one_at_night() -> Iterator[object]:
    for source, arch in itertools.product(SOURCES, build.ARCHITECTURES):
        marks = () if (source.stem, arch) == CHEAPEST else (pytest.mark.nightly,)
        yield pytest.param(source, arch, marks=marks, id=f"{source.stem}-{arch}")


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)  # up to half a minute of a core, which other work may share
@pytest.mark.parametrize(("source", "arch"), list(all_but_one_at_night()))
def test_kernel_compiles_without_warnings(source: Path, arch: str, tmp_path: Path) -> None:
    result = compile_kernel(source, arch, tmp_path)
    assert result.returncode == 0, result.stderr
    assert not re.search("warning|Performance Loss", result.stderr), result.stderr


KERNEL = "__global__ void kernel(int* out) {{ {body} out[threadIdx.x] = 1; }}\n"


@needs_nvcc
@pytest.mark.nightly
@pytest.mark.parametrize("arch", build.ARCHITECTURES)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("int unused;", r"warning.*unused"),  # the front end
        ("undeclared();", r'error.*"undeclared" is undefined'),
        ('asm volatile("nonsense;");', "ptxas.*nonsense"),
        ('asm volatile("tcgen05.wait::ld.sync.aligned;");', "ptxas.*tcgen05"),
        ("__shared__ int tile[1 << 16]; tile[0] = out[0]; out[1] = tile[out[2]];", "shared data"),
    ],
)
def test_what_is_wrong_is_heard_from_each_stage(
    body: str, said: str, arch: str, tmp_path: Path
) -> None:
    """Or the test above would prove nothing."""
    source = tmp_path / "wrong.cu"
    source.write_text(KERNEL.format(body=body))
    result = compile_kernel(source, arch, tmp_path)
    assert re.search(said, result.stderr), result.stderr
    assert result.returncode != 0 or "warning" in said


@pytest.fixture(scope="module")
def parse_host_code(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Path], subprocess.CompletedProcess[str]]]:
    """Parses plain C++. A torch for CPUs lacks one header that CUDA's own needs."""
    folder = tmp_path_factory.mktemp("headers")
    macros = folder / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    macros.parent.mkdir(parents=True)
    macros.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")

    def parse(source: Path) -> subprocess.CompletedProcess[str]:
        options = "-Xcompiler", "-fsyntax-only", f"-I{folder}"
        command = build.host_command(source, folder / "out.o", build.find_nvcc(), *options)
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", sys.path[:])  # setuptools, which torch imports, adds to it
        yield parse


@needs_nvcc
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("source", HOST_SOURCES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_host_code_fits_torch_and_the_kernels(
    source: Path, parse_host_code: Callable[[Path], subprocess.CompletedProcess[str]]
) -> None:
    result = parse_host_code(source)
    assert result.returncode == 0, result.stderr


@needs_nvcc
@pytest.mark.nightly
@pytest.mark.slow
def test_host_code_that_does_not_fit_is_named(
    tmp_path: Path, parse_host_code: Callable[[Path], subprocess.CompletedProcess[str]]
) -> None:
    text = (build.SOURCES / "quantization" / "ops.cpp").read_text()
    source = tmp_path / "ops.cpp"
    source.write_text(text.replace("call.dtype, call.stream)", "call.dtype, call.stream, 1)"))
    result = parse_host_code(source)
    assert result.returncode != 0
    assert "too many arguments" in result.stderr, result.stderr


def test_kernels_take_raw_pointers_only() -> None:
    for path in build.SOURCES.rglob("*.*"):
        if path.parent.name != "binding":
            text = path.read_text()
            assert "torch/" not in text, path
            assert "ATen" not in text, path


def test_fingerprint_follows_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(build.SOURCES, tmp_path / "csrc")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "csrc")
    before = build._fingerprint("90a", "2.11")
    assert build._fingerprint("80", "2.11") != before
    assert build._fingerprint("90a", "2.12") != before
    assert build._fingerprint("90a", "2.11") == before
    next((tmp_path / "csrc").rglob("*.cu")).write_text("// changed")
    assert build._fingerprint("90a", "2.11") != before


def test_each_version_of_a_compiler_builds_for_itself(tmp_path: Path) -> None:
    hashes = set()
    for version in ("13.0", "13.1"):
        compiler = tmp_path / "nvcc"
        compiler.write_text(f"#!/bin/sh\necho {version}\n")
        compiler.chmod(0o755)
        hashes.add(build.version_hash(str(compiler)))
    assert len(hashes) == 2


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
    monkeypatch.setattr(build, "version_hash", lambda compiler: compiler)
    monkeypatch.setattr(build, "_fingerprint", lambda *_: "missing")
    with pytest.raises(build.BuildError, match=r"cannot be written.*set SLUICE_KERNEL_CACHE"):
        build.library("90a")
    monkeypatch.setattr(build, "_fingerprint", lambda *_: "kept")
    assert build.library("90a") == read_only / "kept" / "nvcc" / "sluice_kernels.so"


def test_without_a_compiler_what_was_built_before_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing() -> str:
        raise build.BuildError("nvcc was not found")

    monkeypatch.setenv("SLUICE_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "find_nvcc", missing)
    folder = tmp_path / build._fingerprint("90a", torch.__version__)
    (folder / "of an interrupted build").mkdir(parents=True)
    with pytest.raises(build.BuildError, match="nvcc was not found"):
        build.library("90a")
    for age_s, version in enumerate(("newer", "older")):
        built = folder / version / "sluice_kernels.so"
        built.parent.mkdir()
        built.touch()
        os.utime(built, (10 - age_s, 10 - age_s))
    assert build.library("90a") == folder / "newer" / "sluice_kernels.so"
    with pytest.raises(build.BuildError, match="nvcc was not found"):
        build.library("80")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_KERNEL_CACHE", "/somewhere")
    assert build.cache_dir() == Path("/somewhere")
    monkeypatch.delenv("SLUICE_KERNEL_CACHE")
    assert build.cache_dir().parts[-3:] == (".cache", "sluice", "kernels")
