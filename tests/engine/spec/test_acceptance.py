from __future__ import annotations

import random

import pytest

from engine.spec.acceptance import Acceptance


def draw(rng: random.Random, rates: list[float]) -> int:
    right = 0
    while right < len(rates) and rng.random() < rates[right]:
        right += 1
    return right


def teach(acceptance: Acceptance, rates: list[float], steps: int, batch: int = 4) -> None:
    rng = random.Random(str(rates))
    for _ in range(steps):
        acceptance.observe([(str(i), len(rates), draw(rng, rates)) for i in range(batch)])


def test_each_place_is_judged_under_the_condition_that_it_was_reached() -> None:
    acceptance = Acceptance(4)
    assert acceptance.rates == pytest.approx([0.6] * 4), "nothing is known"
    teach(acceptance, [0.8, 0.5, 0.9], steps=400)
    assert acceptance.rates == pytest.approx([0.8, 0.5, 0.9, 0.9], abs=0.07)
    first, second, third, _ = acceptance.survival()
    assert (first, second, third) == pytest.approx((0.8, 0.4, 0.36), abs=0.06)


OUTCOMES = [("all but the last", 3, 2), ("all", 2, 2), ("none", 1, 0)]


def test_a_step_counts_for_the_places_that_it_reached() -> None:
    """As if four drafts at the rate of the place before had been judged, at 0.6 for the first."""
    acceptance = Acceptance(4)
    acceptance.observe(OUTCOMES)
    first = (2 + 4 * 0.6) / (3 + 4)
    second = (2 + 4 * first) / (2 + 4)
    third = (0 + 4 * second) / (1 + 4)
    assert acceptance.rates == pytest.approx([first, second, third, third])
    assert acceptance.of_each([name for name, _, _ in OUTCOMES]) == [
        pytest.approx(((1 + 4 * first) / 5, (1 + 4 * second) / 6)),
        pytest.approx(((1 + 4 * first) / 5, (1 + 4 * second) / 5)),
        pytest.approx(((0 + 4 * first) / 5, second)),
    ]


def test_all_requests_are_alike_where_that_is_asked_for() -> None:
    acceptance = Acceptance(4, by_request=False)
    acceptance.observe(OUTCOMES)
    assert acceptance.of_each(["all", "none"]) == [tuple(acceptance.rates[:2])] * 2


@pytest.mark.parametrize("num_steps", [1, 15, 16, 400])
def test_steps_without_drafts_age_alike_one_by_one_or_together(num_steps: int) -> None:
    together, one_by_one, fresh = Acceptance(4), Acceptance(4), Acceptance(4)
    for acceptance in (together, one_by_one, fresh):
        for _ in range(40):  # more than are remembered for ever
            acceptance.observe(OUTCOMES[1:2])
    together.rest(num_steps)
    for _ in range(num_steps):
        one_by_one.observe([])
    assert together.rates == pytest.approx(one_by_one.rates)
    assert (together.rates == fresh.rates) == (num_steps < 16), "at times, many at once"
    for acceptance in (together, one_by_one, fresh):
        acceptance.observe(OUTCOMES[:1])
    assert together.rates == pytest.approx(one_by_one.rates)
    assert together.rates != pytest.approx(fresh.rates)


def test_more_drafts_than_are_tried_say_nothing_of_the_rest() -> None:
    acceptance = Acceptance(3)
    for _ in range(100):
        acceptance.observe([("a", 3, 0)])
    assert acceptance.rates[0] < 0.05
    before = acceptance.rates[2] - acceptance.rates[1]
    assert before == pytest.approx(0), "never reached: like the place before"


def test_requests_differ_from_the_rest() -> None:
    acceptance, rng = Acceptance(4), random.Random(2)
    kinds = {"good": [0.9] * 4, "bad": [0.1] * 4, "later": [0.3, 1.0, 1.0, 1.0]}
    for _ in range(100):
        acceptance.observe([(name, 4, draw(rng, rates)) for name, rates in kinds.items()])
    good, bad, (first, later), new = acceptance.of_each(["good", "bad", "later", "new"])
    assert min(good) > 0.75
    assert bad[0] < 0.25
    assert first < 0.5 < 0.85 < later
    rates = acceptance.rates
    assert new == (rates[0], rates[1])
    acceptance.drop("bad")
    bad, new = acceptance.of_each(["bad", "new"])
    assert bad == new


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.2), (0.1, 0.8)])
def test_sudden_changes_are_noticed(before: float, after: float) -> None:
    acceptance = Acceptance(1)
    teach(acceptance, [before], steps=2000, batch=1)
    teach(acceptance, [after], steps=60, batch=1)
    assert acceptance.rates[0] == pytest.approx(after, abs=0.2)


@pytest.mark.parametrize("batch", [8, 64])
def test_a_single_step_is_enough_to_notice_a_change(batch: int) -> None:
    """What came before it is forgotten."""
    acceptance = Acceptance(1)
    teach(acceptance, [0.9], steps=2000, batch=1)
    acceptance.observe([(str(i), 1, 0) for i in range(batch)])
    assert acceptance.rates == pytest.approx([4 * 0.6 / (batch + 4)])


def test_the_latest_drafts_count_and_those_of_four_steps_in_any_case() -> None:
    alone, crowd = Acceptance(1), Acceptance(1)
    for _ in range(2000):
        alone.observe([("a", 1, 1)])
    assert alone.rates == pytest.approx([1 - 4 * 0.4 / (512 + 4)])
    ((first, _),) = alone.of_each(["a"])
    assert first == pytest.approx(1 - 4 * (1 - alone.rates[0]) / (24 + 4))
    for num_right in (480, 500, 500, 500, 540):
        crowd.observe([(str(i), 1, i < num_right) for i in range(1000)])
    num_hits = 3 / 4 * (480 + 3 * 500) + 540
    assert crowd.rates == pytest.approx([(num_hits + 4 * 0.6) / (4000 + 4)])


def test_a_place_that_drafts_do_not_reach_is_forgotten() -> None:
    """Then it is like the place before it."""
    acceptance = Acceptance(3)
    for _ in range(200):
        acceptance.observe([("a", 3, 1)])
    assert acceptance.rates[1] < 0.05
    seen = []
    for _ in range(1000):
        acceptance.observe([("a", 1, 1)])
        seen.append(acceptance.rates[1])
    assert seen == sorted(seen)
    assert seen[100] < 0.1 < 0.99 < seen[-1]


def test_luck_is_not_taken_for_a_change() -> None:
    acceptance, rng = Acceptance(1), random.Random(5)
    worst = 0.0
    for step in range(6000):
        acceptance.observe([("a", 1, draw(rng, [0.7]))])
        if step > 300:
            worst = max(worst, abs(acceptance.rates[0] - 0.7))
    assert worst < 0.12


def test_old_news_count_less() -> None:
    old, fresh = Acceptance(1), Acceptance(1)
    for acceptance in (old, fresh):
        teach(acceptance, [0.0], steps=200, batch=1)
    old.rest(3000)
    for acceptance in (old, fresh):
        teach(acceptance, [1.0], steps=4, batch=1)
    assert old.rates[0] > 2 * fresh.rates[0]


@pytest.mark.parametrize(("num_steps", "left"), [(1000, 512 * 0.999**1000), (100_000, 24)])
def test_steps_without_drafts_make_the_drafts_before_count_for_less(
    num_steps: int, left: float
) -> None:
    acceptance = Acceptance(1)
    for _ in range(2000):
        acceptance.observe([("a", 1, 1)])
    assert acceptance.rates == pytest.approx([1 - 4 * 0.4 / (512 + 4)])
    acceptance.rest(num_steps)
    assert acceptance.rates == pytest.approx([1 - 4 * 0.4 / (left + 4)])


def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    acceptance = Acceptance(2)
    acceptance.observe([("", 2, 0), ("a", 2, 2)])
    acceptance.drop("a")
    assert acceptance.of_each(["", "a"]) == [tuple(acceptance.rates)] * 2
    assert acceptance.rates[0] != acceptance.rates[1]
    assert Acceptance(1).of_each(["new"]) == [(0.6, 0.6)]


@pytest.mark.parametrize("count", [20, 200])
def test_what_is_known_does_not_fade_for_good(count: int) -> None:
    """The prior alone is no reason to draft again."""
    acceptance = Acceptance(1)
    teach(acceptance, [0.0], steps=count, batch=1)
    acceptance.rest(100_000)
    assert acceptance.rates[0] < 0.11
