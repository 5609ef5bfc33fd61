from __future__ import annotations

import io

from rich.console import Console

from engine.messages import LoadProgress
from gateway.commands.load_progress import LoadBar, LoadLines


def test_lines_tell_what_is_new_and_quarters_of_what_is_long() -> None:
    lines: list[str] = []
    report = LoadLines(lines.append)
    report(LoadProgress("Reading model", 0.0))
    for percent in range(5, 90):
        report(LoadProgress("Loading model.safetensors", percent / 100))
    report(LoadProgress("Model loaded", 1.0))
    assert lines == [
        "Reading model (0%)",
        "Loading model.safetensors (5%)",
        "Loading model.safetensors (30%)",
        "Loading model.safetensors (55%)",
        "Loading model.safetensors (80%)",
        "Model loaded (100%)",
    ]


def test_a_bar_fills_and_goes_away_as_often_as_a_model_is_loaded() -> None:
    out = io.StringIO()
    report = LoadBar(Console(file=out, force_terminal=True, width=80))
    for _ in range(2):
        start = out.tell()
        report(LoadProgress("Reading model", 0.0))
        report(LoadProgress("Loading model.safetensors", 0.5))
        report._bar.refresh()
        report(LoadProgress("Model loaded", 1.0))
        shown = out.getvalue()[start:]
        assert "Loading model.safetensors" in shown
        assert "50%" in shown
        assert report._bar.finished
        assert not report._bar.live.is_started
