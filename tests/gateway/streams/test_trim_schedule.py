from __future__ import annotations

from uuid import UUID

from gateway.streams.trim_schedule import TrimSchedule

ONE, OTHER = UUID(int=1), UUID(int=2)


def test_it_is_due_once_a_sixteenth_was_added_and_then_begins_anew() -> None:
    schedule = TrimSchedule()
    assert not schedule.is_due(ONE, 60, 1600)
    assert not schedule.is_due(ONE, 40, 1600)
    assert schedule.is_due(ONE, 1, 1600)
    assert not schedule.is_due(ONE, 100, 1600)
    assert schedule.is_due(ONE, 500, 1600)


def test_each_tenant_counts_for_itself() -> None:
    schedule = TrimSchedule()
    assert not schedule.is_due(ONE, 100, 1600)
    assert not schedule.is_due(OTHER, 100, 1600)
    assert schedule.is_due(OTHER, 1, 1600)
    assert schedule.is_due(ONE, 1, 1600)
