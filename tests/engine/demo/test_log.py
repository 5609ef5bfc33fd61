from __future__ import annotations

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


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("engine.demo.log.time", clock)
    return clock


def _sleep_and_fail(clock: Clock) -> None:
    clock.sleep(2)
    raise OSError("disk")


def test_stages_add_up_also_when_they_fail(clock: Clock) -> None:
    log = Log()
    with log.stage("reading"):
        clock.sleep(2)
    with log.stage("training"):
        clock.sleep(1)
    with pytest.raises(OSError, match="disk"), log.stage("reading"):
        _sleep_and_fail(clock)
    assert log.stages == {"reading": 4, "training": 1}


def test_the_summary_shares_out_the_whole_time(clock: Clock) -> None:
    log = Log()
    with log.stage("training"):
        clock.sleep(3)
    clock.sleep(1)
    lines = [line.rsplit(maxsplit=3) for line in log.summary().splitlines()]
    assert [line[0].strip() for line in lines] == ["training", "everything else", "in all"]
    shares = [float(line[-1].rstrip("%")) for line in lines]
    assert shares == [75, 25, 100]
