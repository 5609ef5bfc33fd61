from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.hysteresis import MARGIN, Hysteresis

LOSING, PAYING = MARGIN - 0.08, MARGIN + 0.02


def tried() -> Hysteresis:
    """Its first drafts are behind it, and they paid."""
    hysteresis = Hysteresis()
    for _ in range(4):
        hysteresis.planned(PAYING, has_drafts=True, batch=16)
    return hysteresis


def give_up(hysteresis: Hysteresis) -> None:
    for _ in range(8):
        hysteresis.planned(0.0, has_drafts=False)
    assert not hysteresis.is_drafting


def num_steps_until_drafts(hysteresis: Hysteresis, gain: float = PAYING) -> int:
    """A step with drafts follows."""
    count = 0
    while not hysteresis.is_drafting:
        hysteresis.planned(gain, has_drafts=False)
        count += 1
    assert hysteresis.takes_up
    hysteresis.planned(gain, has_drafts=True)
    assert not hysteresis.takes_up
    return count


def test_drafts_are_made_until_they_do_not_pay() -> None:
    hysteresis = tried()
    for _ in range(100):
        hysteresis.planned(PAYING, has_drafts=True)
    assert hysteresis.is_drafting
    hysteresis.planned(LOSING, has_drafts=True)
    assert not hysteresis.is_drafting


def test_the_first_drafts_are_tried_whatever_they_are_said_to_gain() -> None:
    """What the first request teaches is true of that one."""
    hysteresis = Hysteresis()
    for _ in range(31):
        hysteresis.planned(LOSING, has_drafts=True, batch=2)
        assert hysteresis.is_drafting
        assert hysteresis.is_trial
    hysteresis.planned(LOSING, has_drafts=True, batch=2)
    assert not hysteresis.is_drafting
    assert not hysteresis.is_trial, "once"
    num_steps_until_drafts(hysteresis)
    assert not hysteresis.is_trial


def test_many_requests_say_as_much_in_fewer_steps() -> None:
    hysteresis = Hysteresis()
    for _ in range(3):
        hysteresis.planned(LOSING, has_drafts=True, batch=200)
        assert hysteresis.is_trial
    hysteresis.planned(LOSING, has_drafts=True, batch=200)
    assert not hysteresis.is_drafting


def test_the_trial_ends_where_it_loses_too_much() -> None:
    hysteresis = Hysteresis()
    for _ in range(7):
        hysteresis.planned(MARGIN - 1.0, has_drafts=True)
        assert hysteresis.is_drafting
    for _ in range(2):
        hysteresis.planned(MARGIN - 1.0, has_drafts=True)
    assert not hysteresis.is_drafting


def test_small_losses_are_borne_for_a_few_steps() -> None:
    """A batch that is larger for a moment."""
    hysteresis = tried()
    for _ in range(50):
        hysteresis.planned(MARGIN - 0.02, has_drafts=True)
        hysteresis.planned(MARGIN - 0.02, has_drafts=True)
        assert hysteresis.is_drafting
        hysteresis.planned(MARGIN + 0.05, has_drafts=True)
    for _ in range(4):
        hysteresis.planned(MARGIN - 0.02, has_drafts=True)
    assert not hysteresis.is_drafting


def test_they_must_pay_in_several_steps_in_a_row() -> None:
    hysteresis = Hysteresis()
    give_up(hysteresis)
    for _ in range(20):
        hysteresis.planned(2.0, has_drafts=False)
        hysteresis.planned(2.0, has_drafts=False)
        hysteresis.planned(LOSING, has_drafts=False)
        assert not hysteresis.is_drafting
    assert num_steps_until_drafts(Hysteresis()) == 0
    give_up(hysteresis := Hysteresis())
    assert num_steps_until_drafts(hysteresis, gain=2.0) == 3


def test_the_less_they_gain_the_longer_it_takes() -> None:
    waited = []
    for gain in (0.3, 0.03, 0.01, 0.003):
        give_up(hysteresis := Hysteresis())
        waited.append(num_steps_until_drafts(hysteresis, MARGIN + gain))
    assert waited == sorted(waited)
    assert waited[-1] > 5 * waited[0]


def test_who_gives_up_soon_thinks_twice_as_long_next_time() -> None:
    hysteresis, waited = Hysteresis(), []
    hysteresis.planned(PAYING, has_drafts=True)
    for _ in range(7):
        give_up(hysteresis)
        waited.append(num_steps_until_drafts(hysteresis))
    assert [round(steps / waited[0]) for steps in waited] == [1, 2, 4, 8, 16, 16, 16]
    for _ in range(40):
        hysteresis.planned(PAYING, has_drafts=True)
    give_up(hysteresis)
    assert num_steps_until_drafts(hysteresis) < waited[0]


@pytest.mark.parametrize(("num_steps", "factor"), [(1, 2), (8, 1)])
def test_who_gave_up_behind_what_paid_does_not(num_steps: int, factor: int) -> None:
    """As where requests come together, and drafts pay once few of them are left."""
    hysteresis, waited = Hysteresis(), []
    for _ in range(20):
        hysteresis.took_up(3.0)
    for _ in range(4):
        give_up(hysteresis)
        waited.append(num_steps_until_drafts(hysteresis, gain=1.4))
        for _ in range(num_steps):
            hysteresis.planned(1.4, has_drafts=True, num_tokens=3.0)
    assert [round(steps / waited[0]) for steps in waited] == [factor**n for n in range(4)]


@pytest.mark.parametrize(("before", "gain"), [(1, 1.1), (1, 1.3), (30, 1.1), (32, 1.1)])
def test_a_burst_needs_a_clear_gain(before: int, gain: float) -> None:
    """What was learned of the last few requests is no reason to draft for many new ones."""

    def burst(hysteresis: Hysteresis) -> bool:
        hysteresis.planned(gain, has_drafts=False, has_newcomers=True, is_new=True, batch=64)
        return hysteresis.is_drafting

    is_reason = gain > 1.15 or before >= 32
    give_up(tempted := Hysteresis())
    for _ in range(2):
        tempted.planned(2.0, has_drafts=False, batch=before)
    assert burst(tempted) is is_reason
    give_up(drafting := Hysteresis())
    num_steps_until_drafts(drafting)
    drafting.planned(PAYING, has_drafts=True, batch=before)
    assert burst(drafting) is is_reason


def test_who_comes_to_others_or_into_the_trial_is_no_burst() -> None:
    give_up(drafting := Hysteresis())
    num_steps_until_drafts(drafting)
    drafting.planned(PAYING, has_drafts=True, batch=1)
    drafting.planned(1.1, has_drafts=True, has_newcomers=True, batch=64)
    assert drafting.is_drafting
    trial = Hysteresis()
    trial.planned(PAYING, has_drafts=True, batch=1)
    trial.planned(1.1, has_drafts=True, has_newcomers=True, is_new=True, batch=64)
    assert trial.is_drafting


@pytest.mark.parametrize("more", [0.5, 5.0])
def test_no_estimate_is_trusted_for_more_than_half_a_step_each(more: float) -> None:
    hysteresis = Hysteresis()
    for _ in range(60):
        hysteresis.took_up(4.0)
    give_up(hysteresis)
    assert num_steps_until_drafts(hysteresis, MARGIN + more) == pytest.approx(8, abs=1)


def test_what_it_costs_to_take_them_up_must_be_lost_first() -> None:
    hysteresis = Hysteresis()
    for _ in range(20):
        hysteresis.took_up(5.0)
    give_up(hysteresis)
    assert num_steps_until_drafts(hysteresis, MARGIN + 0.1) == pytest.approx(50, abs=2)


def test_while_newcomers_come_drafts_are_given_up_but_not_taken_up() -> None:
    hysteresis = tried()
    hysteresis.planned(LOSING, has_drafts=True, has_newcomers=True)
    assert not hysteresis.is_drafting
    for _ in range(10):
        hysteresis.planned(2.0, has_drafts=False, has_newcomers=True)
    assert not hysteresis.is_drafting


def test_with_nobody_but_newcomers_less_has_to_be_lost_first() -> None:
    hysteresis = Hysteresis()
    for _ in range(20):
        hysteresis.took_up(4.0)
    give_up(hysteresis)
    for _ in range(2):
        hysteresis.planned(MARGIN + 0.4, has_drafts=False)
    hysteresis.planned(2.0, has_drafts=False, has_newcomers=True, is_new=True)
    assert not hysteresis.is_drafting
    hysteresis.planned(MARGIN + 0.4, has_drafts=False)
    hysteresis.planned(2.0, has_drafts=False, has_newcomers=True)
    hysteresis.planned(LOSING, has_drafts=False, has_newcomers=True, is_new=True)
    assert not hysteresis.is_drafting
    hysteresis.planned(PAYING, has_drafts=False, has_newcomers=True, is_new=True)
    assert hysteresis.is_drafting


def test_what_is_done_for_the_first_time_is_not_what_it_costs() -> None:
    once, often = Hysteresis(), Hysteresis()
    for cost in (50.0, 0.5, 0.5, 0.5):
        once.took_up(cost)
    for _ in range(20):
        often.took_up(50.0)
    give_up(once)
    give_up(often)
    assert num_steps_until_drafts(once, MARGIN + 0.5) < 4
    assert num_steps_until_drafts(often, MARGIN + 0.5) == pytest.approx(100, abs=2)


@given(st.floats(0.0, 10.0), st.floats(0.02, 0.5), st.integers(0, 40))
def test_it_says_for_how_long_nothing_will_change(cost: float, more: float, num: int) -> None:
    hysteresis = Hysteresis()
    hysteresis.took_up(cost)
    give_up(hysteresis)
    for _ in range(num):
        hysteresis.planned(MARGIN + more, has_drafts=False)
    if hysteresis.is_drafting:
        return
    left = hysteresis.num_steps_left(MARGIN + more)
    waited = num_steps_until_drafts(hysteresis, MARGIN + more)
    assert left <= waited <= max(left + 2, 3)
    assert hysteresis.num_steps_left(LOSING) == 0


@given(st.lists(st.floats(0.3, 3.0), max_size=300), st.floats(0.0, 10.0))
def test_what_is_lost_between_two_changes_is_bounded(gains: list[float], cost: float) -> None:
    """By the decision as it was, against the other one."""
    hysteresis, lost = Hysteresis(), 0.0
    hysteresis.took_up(cost)
    cost = min(0.3 * cost, 0.3 * 4.0)  # One says little, and at most so much.
    for gain in gains:
        before = hysteresis.is_drafting
        hysteresis.planned(gain, has_drafts=before)
        if hysteresis.is_drafting != before:
            lost = 0.0
            continue
        step = min(gain - MARGIN, 0.5)
        lost = max(0.0, lost + (-step if before else step))
        assert lost < (8.0 if before else 32 * max(0.06, cost) + 1.5) + 1e-9
