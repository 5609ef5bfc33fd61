from __future__ import annotations

import pytest

from engine.spec.rest import LONGEST, Rest

FIRST = 8


def rest(num_steps: int = FIRST, *, is_of_batch: bool = False, overlaps: bool = True) -> Rest:
    """The first ones are short."""
    found = Rest()
    while True:
        found.begin(num_steps, 4, overlaps=overlaps, is_of_batch=is_of_batch)
        if found.num_steps == num_steps:
            found.take()
            return found
        while found.num_steps:
            found.plan(4, is_plain=True, overlaps=overlaps)


def plan(found: Rest, batch: int, *, is_plain: bool = True, overlaps: bool = True) -> int | None:
    return found.plan(batch, is_plain=is_plain, overlaps=overlaps)


def test_a_rest_is_twice_as_long_each_time_that_nothing_cuts_it_short() -> None:
    found, lengths = Rest(), []
    for most in [LONGEST] * 5 + [100, LONGEST, LONGEST, LONGEST]:
        found.begin(most, 4, overlaps=True, is_of_batch=False)
        lengths.append(found.num_steps)
        while found.num_steps:
            assert plan(found, 4) == 4
    assert lengths == [8, 16, 32, 64, 128, 100, 512, 1024, 1024]
    assert plan(found, 4) is None
    found.begin(LONGEST, 4, overlaps=True, is_of_batch=False)
    found.end()
    found.begin(LONGEST, 4, overlaps=True, is_of_batch=False)
    assert found.num_steps == FIRST


def test_it_is_no_longer_than_it_may_be() -> None:
    found = rest(3)
    assert [plan(found, 4) for _ in range(4)] == [4, 4, 4, None]
    found.begin(0, 4, overlaps=True, is_of_batch=True)
    assert found.num_steps == 0


@pytest.mark.parametrize("change", [{"batch": 3}, {"is_plain": False}, {"overlaps": False}])
def test_a_rest_of_a_batch_ends_with_it(change: dict[str, int]) -> None:
    step = {"batch": 4, "is_plain": True, "overlaps": True}
    found = rest(is_of_batch=True)
    assert found.plan(**step) == 4  # type: ignore[arg-type]
    assert found.plan(**step | change) is None  # type: ignore[arg-type]
    assert found.num_steps == 0
    other = rest()
    assert other.plan(**step | change) == (3 if "batch" in change else 0)  # type: ignore[arg-type]
    assert other.num_steps == FIRST - 1


@pytest.mark.parametrize(("batch", "batches"), [(1, (1, 1)), (2, (2, 2)), (6, (5, 8)), (8, (5, 8))])
def test_batches_of_about_a_size_belong_to_one(batch: int, batches: tuple[int, int]) -> None:
    """As far as their costs are learned together."""
    found = Rest()
    found.begin(LONGEST, batch, overlaps=True, is_of_batch=False)
    assert (found.least, found.most) == batches
    found.begin(LONGEST, batch, overlaps=True, is_of_batch=True)
    assert (found.least, found.most) == (batch, batch)


def test_another_size_may_cut_it_short() -> None:
    found = rest(64)
    found.go_on(20, 1000)
    assert (found.num_steps, found.least, found.most) == (64, 17, 32)
    found.go_on(0, 1000)
    assert (found.least, found.most) == (17, 32), "between two requests nothing is known"
    found.go_on(40, 10)
    assert (found.num_steps, found.least, found.most) == (10, 33, 64)
    found.go_on(2, 0)
    assert found.num_steps == 0


def test_a_probe_that_is_due_waits_for_a_prompt_but_not_for_ever() -> None:
    found = rest(512)
    found.expect_probe(100, 64)
    assert found.num_steps == 164
    assert found.num_steps_at_probe == 64
    found.expect_probe(1024, 64)
    assert found.num_steps == 164
    assert found.num_steps_at_probe < 0
    found.expect_probe(0, 0)
    assert found.num_steps == FIRST == found.num_steps_at_probe


def test_only_steps_that_are_like_their_neighbours_are_measured() -> None:
    found = rest()
    plans = [4, 4, 3, 3, 0, 0, 3, 3]
    for index, planned in enumerate(plans):
        follower = plans[index + 1] if index + 1 < len(plans) else None
        found.collect(planned, float(index), planned, follower=follower)
    # Not the first of a batch, none beside prompts or before those, and not the last.
    assert found.take() == ({4: [1.0]}, {4: 8, 3: 12, 0: 0}, 0)
    assert found.take() == ({}, {}, 0)


def test_what_most_steps_of_a_long_rest_take_is_not_asked() -> None:
    found = rest(64)
    num_passed = 0
    while found.passes(3):
        num_passed += 1
    assert num_passed == 64 - 12
    for seconds in (9.0, 1.0, 2.0):
        assert plan(found, 4) == 4
        found.collect(4, seconds, 4, follower=4)
    # The first one began when nobody looked at the clock.
    assert found.take() == ({4: [1.0, 2.0]}, {3: 3 * num_passed, 4: 12}, num_passed)
    assert not rest().passes(4)
    assert not rest(64, is_of_batch=True).passes(4)


def test_of_steps_that_do_not_overlap_each_is_whole() -> None:
    found = rest(overlaps=False)
    for seconds in (1.0, 2.0, 3.0):
        found.collect(4, seconds, 4, follower=None)
    assert found.take() == ({4: [2.0, 3.0]}, {4: 12}, 0)


def test_what_a_pause_took_is_not_measured() -> None:
    found = rest()
    found.collect(4, 1.0, 4, follower=4)
    found.pause()
    assert found.num_steps == FIRST, "the rest goes on after it"
    found.collect(4, 9.0, 4, follower=4)
    found.collect(4, 2.0, 4, follower=4)
    assert found.take() == ({4: [2.0]}, {4: 12}, 0)
    of_batch = rest(is_of_batch=True)
    of_batch.pause()
    assert of_batch.num_steps == 0
