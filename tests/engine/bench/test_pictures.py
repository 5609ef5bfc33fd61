"""The benchmark runs on a small checkpoint, and a known picture is not encoded again."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bench import pictures
from tests.engine import seeing


def test_it_compares_pictures_with_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures.Bench, "words", lambda _self, count=4: [7] * min(count, 40))
    folder = seeing.write(seeing.QWEN3_VL, tmp_path)
    options = ["--side", "48", "--requests", "2", "--max-tokens", "2", "--device", "cpu"]
    pictures.main(["--model", str(folder), *options])
    printed = capsys.readouterr().out
    for what in ("2 requests", "a known picture", "a known prefix", "one request"):
        assert what in printed
