from __future__ import annotations

import gc

import pytest

from engine import garbage

pytestmark = pytest.mark.usefixtures("collector_as_before")


def test_what_is_loaded_is_never_looked_at_again() -> None:
    loaded: list[list[int]] = [[] for _ in range(1000)]
    garbage.tune_collector()
    assert gc.get_freeze_count() >= len(loaded)
    assert gc.get_threshold() == garbage.THRESHOLDS
    assert gc.isenabled(), "what steps leave behind is still collected"
