from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from engine import garbage


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_loaded_is_never_looked_at_again() -> None:
    loaded = [[] for _ in range(1000)]
    garbage.tune_collector()
    assert gc.get_freeze_count() >= len(loaded)
    assert gc.get_threshold() == garbage.THRESHOLDS
    assert gc.isenabled(), "what steps leave behind is still collected"
