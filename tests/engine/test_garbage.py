from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections import deque

import pytest

from engine import garbage

pytestmark = pytest.mark.usefixtures("collector_as_before")


def test_what_is_loaded_is_never_looked_at_again() -> None:
    loaded: list[list[int]] = [[] for _ in range(1000)]
    garbage.tune_collector()
    assert gc.get_freeze_count() >= len(loaded)
    assert gc.get_threshold() == garbage.THRESHOLDS
    assert gc.isenabled(), "what steps leave behind is still collected"


def interrupted() -> None:
    with garbage.full_collections_held_back():
        assert gc.get_threshold() == (600, 9, garbage.FULL_THRESHOLD)
        raise KeyboardInterrupt


def full_collections_by(num_objects: int) -> int:
    """How many there are while so many objects are made that live on."""
    gc.collect()  # also begins to count anew
    before: int = gc.get_stats()[2]["collections"]
    held: list[list[int]] = [[] for _ in range(num_objects)]
    assert len(held) == num_objects
    after: int = gc.get_stats()[2]["collections"]
    return after - before


def test_only_for_a_while_and_nothing_frozen() -> None:
    gc.set_threshold(600, 9, 8)
    frozen = gc.get_freeze_count()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gc.get_threshold() == (600, 9, 8)
    assert gc.get_freeze_count() <= frozen  # Some of what others froze may have been freed.


def test_what_requests_pile_up_brings_about_no_full_collection() -> None:
    gc.set_threshold(700, 10, 10)  # Python's own
    gc.unfreeze()
    # One comes after a quarter of those that live, and not before 11 × 11 × 700.
    num_objects = max(len(gc.get_objects()) // 2, 200_000)
    assert full_collections_by(num_objects) > 0
    with garbage.full_collections_held_back():
        assert full_collections_by(num_objects) == 0


class Kept:
    """A cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("lives", [0, 1, 2], ids=lambda lives: f"survives {lives}")
def test_cycles_keep_no_more_than_a_few_looks_let_by(lives: int) -> None:
    """``lives``: the looks that each object sees before it becomes garbage: none of the three
    generations is forgotten."""
    garbage.tune_collector()
    received, living = garbage.Received(), deque[Kept]()
    refs: list[weakref.ref[Kept]] = []
    most = 0
    for _ in range(3 * garbage.LOOKS**2):
        kept = Kept()
        refs.append(weakref.ref(kept))
        living.append(kept)
        del kept
        if len(living) > lives:
            living.popleft()
        received.add(garbage.LOOK_BYTES)
        most = max(most, sum(ref() is not None for ref in refs))
    # Some looks are at two generations: what lives through one of these is old at once.
    assert most <= [2, 2 * garbage.LOOKS, garbage.LOOKS**2 + garbage.LOOKS][lives]


def test_small_requests_are_no_reason_to_look() -> None:
    ref = weakref.ref(Kept())
    received = garbage.Received()
    for _ in range(100):
        received.add(1000)
    assert ref() is not None
    received.add(garbage.LOOK_BYTES)
    assert ref() is None


def test_a_collector_that_is_off_stays_off() -> None:
    ref = weakref.ref(Kept())
    gc.disable()
    try:
        garbage.Received().add(garbage.LOOK_BYTES)
        assert ref() is not None
    finally:
        gc.enable()


PROGRAM = """
import sys
import psutil
from engine import garbage

if sys.argv[1] == "ours":
    garbage.return_large_blocks()
before = psutil.Process().memory_info().rss
for _ in range(3):
    body = b"x" * 25_000_000
    del body
print(psutil.Process().memory_info().rss - before)
"""


def test_what_large_bodies_took_is_given_back() -> None:
    kept = {
        rule: int(subprocess.check_output([sys.executable, "-c", PROGRAM, rule]))
        for rule in ("ours", "the library's")
    }
    assert kept["ours"] < 5_000_000
    assert kept["the library's"] > 20_000_000, "needless now"
