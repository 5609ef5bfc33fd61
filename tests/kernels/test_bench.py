"""The benchmark says what it cannot do; its figures need a GPU."""

from __future__ import annotations

import pytest
import torch

from kernels import bench


def test_an_unknown_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        bench.main(["decode", "prefil"])
    assert left.value.code == 2
    assert "prefil is none of decode, decode-fp8, prefill" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as left:
        bench.main([])
    assert left.value.code == 1
    assert "no CUDA device" in capsys.readouterr().err
