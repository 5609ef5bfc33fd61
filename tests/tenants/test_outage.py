from __future__ import annotations

import logging

import pytest

from tenants.outage import OutageLog

logger = logging.getLogger("tests.outage")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return told


def test_it_is_told_at_once_ever_less_often_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 100.0
    log = OutageLog(logger, clock=lambda: now)
    told_at: list[float] = []
    for step in range(2 * 300):
        now = 100 + step / 2
        log.failed("No %s: %s", "post", step)
        if caplog.records:
            told_at.append(now - 100)
            (line,) = lines(caplog)
            since = f" (for {told_at[-1]:.0f} s now)" if len(told_at) > 1 else ""
            assert line == f"No post: {step}{since}", "with the newest reason"
    assert told_at == [0, 10, 30, 70, 130, 190, 250]
    log.succeeded("%s comes again", "post")
    log.succeeded("%s comes again", "post")
    assert lines(caplog) == ["post comes again, after 299.5 s"]


def test_the_next_one_is_told_from_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = OutageLog(logger, level=logging.ERROR, clock=lambda: now)
    log.succeeded("fine")
    assert caplog.records == []
    for second in (0.0, 9.0, 11.0):
        now = second
        log.failed("gone")
    log.succeeded("back")
    for second in (12.0, 21.0, 23.0):
        now = second
        log.failed("gone")
    assert {record.levelname for record in caplog.records} == {"ERROR"}
    assert {record.funcName for record in caplog.records} == {
        "test_the_next_one_is_told_from_its_beginning"
    }
    assert lines(caplog) == [
        *("gone", "gone (for 11 s now)", "back, after 11.0 s"),
        *("gone", "gone (for 11 s now)"),
    ]


def test_requests_that_fail_are_counted_and_each_is_there_at_debug_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger.name)
    now = 0.0
    log = OutageLog(logger, calm_s=5.0, clock=lambda: now)
    for second in range(31):
        now = float(second)
        log.failed("Request %d is lost: %s", second, "100 % full")
        log.succeeded("Requests are kept")  # of one that was under way
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert told == [
        "Request 0 is lost: 100 % full",
        "Request 10 is lost: 100 % full (9 more, for 10 s now)",
        "Request 30 is lost: 100 % full (19 more, for 30 s now)",
    ]
    assert len(caplog.records) == 31
    assert "Request 17 is lost: 100 % full" in caplog.text
    now = 31.0
    log.failed("Request 31 is lost: %s", "full")
    caplog.clear()
    for moment in (33.0, 35.9, 36.0, 37.0):
        now = moment
        log.succeeded("Requests are kept")
    assert lines(caplog) == ["Requests are kept, 1 more, after 36.0 s"]
