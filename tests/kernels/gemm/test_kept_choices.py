from __future__ import annotations

import logging
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels import build, kept_choices
from kernels.gemm import Gemm, Kind
from kernels.kept_choices import KeptChoices

KIND = Kind(torch.Size((6144, 4096)), torch.bfloat16, gated=False)
GATED = KIND._replace(gated=True)
CHOICES = {
    1: Gemm("skinny", 4),
    256: Gemm("wide", 224),
    1024: Gemm("library"),
}


@pytest.fixture
def kept(tmp_path: Path) -> KeptChoices:
    return KeptChoices(tmp_path / "gemms")


def test_what_was_written_is_read_by_everybody(kept: KeptChoices, tmp_path: Path) -> None:
    assert kept.read(KIND) == {}
    with kept.locked():
        kept.write(KIND, CHOICES)
    assert KeptChoices(tmp_path / "gemms").read(KIND) == CHOICES
    for kind in (GATED, KIND._replace(dtype=torch.float16)):
        assert kept.read(kind) == {}
    with kept.locked():
        kept.write(KIND, {2: CHOICES[1]})
    assert kept.read(KIND) == {2: CHOICES[1]}
    files = sorted(path.name for path in (tmp_path / "gemms").iterdir())
    assert files == ["6144x4096-bfloat16.json", "lock"], "no half-written ones are left"


@pytest.mark.parametrize(
    "damaged", [b"", b"\xff{", b'{"1": {"name": "unheard of"}}', b'{"many": {"name": "wide"}}']
)
def test_what_is_damaged_counts_as_nothing_and_is_said(
    kept: KeptChoices, tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with kept.locked():
        kept.write(KIND, CHOICES)
    (path,) = (tmp_path / "gemms").glob("*.json")
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert kept.read(KIND) == {}
    assert f"{path} cannot be read, so GEMMs are measured anew: " in caplog.text


def test_where_nothing_can_be_kept_it_is_only_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gemms").write_text("a file where the folder should be")
    kept = KeptChoices(tmp_path / "gemms" / "more")
    with kept.locked(), caplog.at_level(logging.WARNING):
        for kind in (KIND, GATED):
            kept.write(kind, CHOICES)
            assert caplog.text.count("The choice of GEMMs is not kept") == 1
    with caplog.at_level(logging.WARNING):
        assert kept.read(KIND) == {}


def test_who_measures_is_alone(tmp_path: Path) -> None:
    """Whether or not the folder was there before, or those above it."""
    folder = tmp_path / "kernels" / "gemms"
    for _ in range(2):
        with ThreadPoolExecutor(1) as threads:
            with KeptChoices(folder).locked():
                second = threads.submit(_enter, KeptChoices(folder))
                assert not wait([second], timeout=0.1).done
            second.result(30)


def _enter(kept: KeptChoices) -> None:
    with kept.locked():
        pass


def test_no_other_file_system_is_needed(
    kept: KeptChoices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another one a file could not be renamed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with kept.locked():
        kept.write(KIND, CHOICES)
    assert kept.read(KIND) == CHOICES


def test_an_error_of_who_measures_is_not_hidden(kept: KeptChoices) -> None:
    for _ in range(2):
        with pytest.raises(OSError, match="no memory"), kept.locked():
            raise OSError("no memory")


def test_whatever_times_depend_on_has_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu = SimpleNamespace(name="H200", multi_processor_count=132, total_memory=2**37)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(kept_choices, "_DRIVER", tmp_path / "driver")
    monkeypatch.setenv("SLUICE_KERNEL_CACHE", str(tmp_path))
    shutil.copytree(build.SOURCES, tmp_path / "csrc")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "csrc")
    device = torch.device("cuda")

    def folder() -> Path:
        path = KeptChoices.of(device)._folder
        assert path.parent == tmp_path / "gemms"
        return path

    seen = [folder()]
    assert folder() == seen[0]
    for name, value in {"name": "H100", "multi_processor_count": 114, "total_memory": 1}.items():
        setattr(gpu, name, value)
        seen.append(folder())
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    seen.append(folder())
    (tmp_path / "driver").write_text("580.65")
    seen.append(folder())
    monkeypatch.setattr(torch, "__version__", "9.9")
    seen.append(folder())
    (tmp_path / "csrc" / "gemm" / "wide_linear.cu").write_text("// changed")
    seen.append(folder())
    assert len({*seen}) == len(seen)
