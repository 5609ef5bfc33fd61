from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.bench import aborts
from gateway.bench.aborts import Aborts
from gateway.bench.failures import Failure
from gateway.bench.stream import Sample


def test_from_leaving_to_hearing(tmp_path: Path) -> None:
    notes = tmp_path / "aborts"
    notes.write_text("10.5 aa-0\n11.0 bb-0\n99 unknown-0\n")
    samples = [
        Sample(request_id="aa", left_at_s=10.25),
        Sample(request_id="bb", left_at_s=10.0),
        Sample(request_id="cc"),
        Sample(request_id="dd", left_at_s=10.0, error=Failure("HTTP 503")),
    ]
    assert Aborts(notes).latencies_s(samples) == [0.25, 1.0]


def test_what_the_engine_never_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborts, "WAIT_S", 0.01)
    latencies = Aborts(tmp_path / "none").latencies_s([Sample(request_id="aa", left_at_s=1.0)])
    assert latencies == [math.inf]
    assert Aborts(tmp_path / "none").latencies_s([]) == []
