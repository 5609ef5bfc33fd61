from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.demo.log import Log


def test_lines_are_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(tmp_path / "a.log")
    log("one")
    log("two ö")
    printed = capsys.readouterr().out
    assert [line.partition("] ")[2] for line in printed.splitlines()] == ["one", "two ö"]
    assert (tmp_path / "a.log").read_text(encoding="utf-8") == printed


def test_a_new_log_begins_anew(tmp_path: Path) -> None:
    Log(tmp_path / "a.log")("old")
    Log(tmp_path / "a.log")
    assert (tmp_path / "a.log").read_text() == ""


def test_without_a_path_it_only_prints(capsys: pytest.CaptureFixture[str]) -> None:
    Log()("here")
    assert capsys.readouterr().out.endswith("here\n")


def _sleep_and_fail() -> None:
    time.sleep(0.02)
    raise OSError("disk")


def test_stages_add_up_also_when_they_fail() -> None:
    log = Log()
    with log.stage("reading"):
        time.sleep(0.02)
    with log.stage("training"):
        time.sleep(0.01)
    with pytest.raises(OSError, match="disk"), log.stage("reading"):
        _sleep_and_fail()
    assert list(log.stages) == ["reading", "training"]
    assert log.stages["reading"] >= 0.04
    assert 0.01 <= log.stages["training"] < log.stages["reading"]


def test_the_summary_shares_out_the_whole_time() -> None:
    log = Log()
    with log.stage("training"):
        time.sleep(0.03)
    time.sleep(0.01)
    lines = [line.rsplit(maxsplit=3) for line in log.summary().splitlines()]
    assert [line[0].strip() for line in lines] == ["training", "everything else", "in all"]
    shares = [float(line[-1].rstrip("%")) for line in lines]
    assert shares[0] > shares[1] > 0
    assert shares[2] == 100
    assert shares[0] + shares[1] == pytest.approx(100, abs=0.2)
