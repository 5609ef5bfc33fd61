from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels import cpu, ops, reference
from kernels.build import BuildError

needs_kernels = pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty build cache and nothing loaded."""
    monkeypatch.setenv("SLUICE_KERNEL_CACHE", str(tmp_path))
    cpu.library.cache_clear()
    cpu.available.cache_clear()
    yield tmp_path
    cpu.library.cache_clear()
    cpu.available.cache_clear()


@needs_kernels
def test_a_build_is_made_once_and_serves_without_a_compiler(
    cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_COMPILE", ("-O0", *cpu._COMPILE[1:]))  # takes a third of the time
    first = cpu.build()
    assert first.parent == cold / "cpu"
    made = first.stat().st_mtime_ns
    assert cpu.build() == first
    assert first.stat().st_mtime_ns == made
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cpu.build() == first
    assert cpu.available()
    monkeypatch.setattr(cpu, "_processor", lambda: b"another")
    with pytest.raises(BuildError, match="install g"):
        cpu.build()


@needs_kernels
def test_a_changed_header_is_another_build(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cpu._fingerprint()
    changed = cold / cpu.HEADERS[0].name
    changed.write_text(cpu.HEADERS[0].read_text() + "// changed\n")
    monkeypatch.setattr(cpu, "HEADERS", [changed, *cpu.HEADERS[1:]])
    assert cpu._fingerprint() != first


def test_without_a_compiler_the_kernels_are_off(
    cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not cpu.available()
    with pytest.raises(BuildError, match="install g"):
        cpu.build()


def test_what_the_compiler_says_is_in_the_error(
    cold: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'no such flag' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match="no such flag"):
        cpu.build()
    assert not cpu.available()


@needs_kernels
def test_a_cache_that_cannot_be_written_turns_the_kernels_off(
    cold: Path, read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_KERNEL_CACHE", str(read_only))
    assert not cpu.available()
    with pytest.raises(BuildError, match=r"cpu cannot be written.*set SLUICE_KERNEL_CACHE"):
        cpu.build()


@needs_kernels
def test_registered_kernels_serve_float32_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_registry", dict(ops._registry))
    cpu.register()
    try:
        assert ops.resolve("rms_norm", "cpu", torch.float32) is cpu.rms_norm
        assert ops.resolve("rms_norm", "cpu", torch.bfloat16) is reference.rms_norm
    finally:
        ops.resolve.cache_clear()
