from __future__ import annotations

import gc

from engine.cache.ceilings import Ceilings


def test_the_first_released_go_first() -> None:
    (group,) = Ceilings().of({"a": 2})
    group.idle.update(dict.fromkeys([7, 3, 5]))
    for block_id in group.excess():
        assert block_id == 7
        del group.idle[block_id]
    assert list(group.idle) == [3, 5]


def test_the_newest_bound_holds_for_all_who_share_the_name() -> None:
    ceilings = Ceilings()
    first, other = ceilings.of({"a": 2, "b": 3})
    (again,) = ceilings.of({"a": 9})
    assert again is first
    assert (first.max_blocks, other.max_blocks) == (9, 3)


def test_groups_that_nobody_belongs_to_are_forgotten() -> None:
    ceilings = Ceilings()
    kept = ceilings.of({"a": 1, "b": 2})[0]
    gc.collect()
    assert len(ceilings) == 1
    assert ceilings.of({"a": 5}) == (kept,)
