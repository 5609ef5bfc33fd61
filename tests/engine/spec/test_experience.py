from __future__ import annotations

from typing import Any

import pytest

import engine.spec.experience
from engine.spec.costs import StepCosts
from engine.spec.experience import STEPS_PER_UPDATE, Experience
from engine.spec.planned_step import PlannedStep

COSTS = StepCosts([1, 8, 64], [0, 3], [[0.010, 0.011, 0.014], [0.012, 0.015, 0.040]], True)

PLAIN: dict[str, Any] = {"batch": 8, "length": 0, "num_drafts": 0, "began_s": 0.0}
DRAFTED: dict[str, Any] = {"batch": 8, "length": 3, "num_drafts": 24, "began_s": 0.0}
RIGHT, WRONG = ([(str(i), 3, num_right) for i in range(8)] for num_right in (2, 0))


def decoded(
    experience: Experience, length: int, seconds: float, num_steps: int = 1, batch: int = 8
) -> None:
    """Steps that do nothing else; of three drafts two are right."""
    for _ in range(num_steps):
        step = PlannedStep(batch, length, batch * length, 0.0)
        experience.planned(step)
        outcomes = [(str(i), length, 2) for i in range(batch) if length]
        experience.observe(step, seconds, outcomes)


def test_what_steps_take_and_what_was_right() -> None:
    experience = Experience(COSTS)
    decoded(experience, 0, 0.022, 100)
    decoded(experience, 3, 0.030, 100)
    assert experience.costs.uniform(8, 0) == pytest.approx(0.022, rel=0.05)
    assert experience.costs.uniform(8, 3) == pytest.approx(0.030, rel=0.1)
    first, second, third = experience.acceptance.rates
    assert min(first, second) > 0.9
    assert third < 0.1


def test_it_is_judged_anew_once_in_several_steps() -> None:
    experience = Experience(COSTS)
    decoded(experience, 3, 0.015, 100)
    version = experience.version
    decoded(experience, 3, 0.015, 10 * STEPS_PER_UPDATE)
    assert version + 10 == experience.version
    decoded(experience, 0, 0.011, 1 + STEPS_PER_UPDATE)
    version = experience.version
    decoded(experience, 0, 0.011, 10 * STEPS_PER_UPDATE)
    assert version + 10 == experience.version


def test_a_step_that_overlaps_with_prompts_is_not_typical() -> None:
    """The host planned them in its time."""
    experience = Experience(COSTS)
    steps = [PlannedStep(8, 0, 0, 0.0, overlaps=True) for _ in range(3)]
    for step in steps:
        experience.planned(step)
    assert steps[-1].is_typical
    prompts = PlannedStep(8, 0, 0, 0.0, only_decodes=False, overlaps=True, num_new=1)
    experience.planned(prompts)
    assert steps[-2].is_typical
    assert not steps[-1].is_typical
    assert not prompts.is_typical


def test_prompts_of_short_answers_do_not_put_off_what_is_measured_anew() -> None:
    """Each answer begins with a step without drafts, which says nothing of others."""
    experience = Experience(COSTS)
    for _ in range(10):
        for step in (
            PlannedStep(1, 0, 0, 0.0, only_decodes=False, num_new=1),
            *(PlannedStep(1, 3, 3, 0.0) for _ in range(4)),
        ):
            experience.planned(step)
            experience.observe(step, 0.01, [])
    assert experience.remeasurement.is_due(1.1, num_known=100)


def test_answers_that_end_count_as_much_as_they_gained() -> None:
    """Right drafts behind an end are of no use."""
    gained = []
    for num_tokens in (0, 10):
        experience = Experience(COSTS)
        decoded(experience, 0, 0.011, 10)
        step = PlannedStep(8, 3, 24, 0.0, was_awaited=True, num_tokens=num_tokens)
        experience.planned(step)
        experience.observe(step, 0.015, [(str(i), 3, 2) for i in range(8)])
        gained.append(experience.patience_s)
    assert gained[0] > 0 > gained[1]


def test_what_newcomers_cost_is_known_when_they_are_gone() -> None:
    experience = Experience(COSTS)
    decoded(experience, 0, 0.011, 10)
    decoded(experience, 3, 0.015, 50)
    for index in range(60):
        step = PlannedStep(
            8, 3, 21, 0.0, only_decodes=False, num_new=1, exposed_s=0.02, drafting_s=0.02
        )
        experience.planned(step)
        experience.observe(step, 0.035, [])
        experience.drop(str(index))
        decoded(experience, 3, 0.015)
    assert 0 < experience.newcomers.share(1, lambda batch: 0.001) <= 1
    assert experience.newcomers.s_per_token(1) > 0


def test_an_empty_step_teaches_nothing() -> None:
    """Where all was aborted while it was in flight."""
    experience = Experience(COSTS)
    experience.observe(PlannedStep(0, 0, 0, 0.0), 1.0, [])
    assert experience.version == 0


@pytest.mark.parametrize("num_like", [0, 100])
def test_a_step_that_stands_for_others_counts_their_tokens_where_they_were(num_like: int) -> None:
    """What newcomers cost is a share of what is saved on the tokens of each size of batch."""
    experience = Experience(COSTS)
    decoded(experience, 3, 0.030, num_like)  # so many put several steps together
    experience.newcomers.end()
    step = PlannedStep(8, 3, 24, 0.0, num_like=6, like={8: 32, 1: 4})
    experience.planned(step)
    before = dict(experience.newcomers._num_tokens)
    experience.observe(step, 0.030, [(str(i), 3, 2) for i in range(8)])
    decoded(experience, 0, 0.010)
    found = experience.newcomers._num_tokens
    assert found[0] - before.get(0, 0.0) == pytest.approx(4 * 3, rel=0.05)
    assert found[3] > before.get(3, 0.0) * 0.97 + 0.9 * (32 + 8) * 3


def test_the_first_step_behind_what_nobody_looked_at_is_not_typical() -> None:
    experience = Experience(COSTS)
    decoded(experience, 3, 0.030, 3)
    step = PlannedStep(8, 3, 24, 0.0, follows_others=True)
    experience.planned(step)
    assert step.follows_others
    assert not step.is_typical


def empty_budget() -> Experience:
    """Experience with steps without drafts, whose probes have nothing saved up."""
    experience = Experience(COSTS)
    decoded(experience, 0, 0.011, 1 + 2 * STEPS_PER_UPDATE)
    experience.probes.saved_s = 0.0
    return experience


@pytest.mark.parametrize(
    ("before", "step", "is_typical"),
    [
        (PLAIN, PLAIN, True),
        (DRAFTED, DRAFTED, True),
        (None, PLAIN, False),
        (PLAIN | {"only_decodes": False}, PLAIN, False),
        (PLAIN, PLAIN | {"only_decodes": False}, False),
        (PLAIN, PLAIN | {"follows_others": True}, False),
        (PLAIN, DRAFTED, False),
        (DRAFTED, DRAFTED | {"num_drafts": 23}, False),
        (PLAIN | {"batch": 7}, PLAIN, False),
        (PLAIN | {"batch": 9}, PLAIN, True),
        (PLAIN | {"overlaps": True}, PLAIN | {"overlaps": True}, True),
        (PLAIN | {"overlaps": True}, PLAIN, False),
        (DRAFTED | {"overlaps": True}, DRAFTED, True),
        (PLAIN, PLAIN | {"was_awaited": True}, False),
        (DRAFTED, DRAFTED | {"was_awaited": True}, True),
    ],
)
def test_a_step_is_typical_behind_one_like_it(
    before: dict[str, Any] | None, step: dict[str, Any], is_typical: bool
) -> None:
    """And overlaps with that one where steps without drafts do: else it takes longer."""
    experience = Experience(COSTS)
    if before is not None:
        experience.planned(PlannedStep(**before))
    planned = PlannedStep(**step)
    experience.planned(planned)
    assert planned.is_typical == is_typical
    others = before is None or before.get("only_decodes") is False or step.get("follows_others")
    assert planned.follows_others == bool(others)


def test_in_a_run_of_steps_with_drafts_all_are_waited_for() -> None:
    experience = Experience(COSTS)
    steps = [PlannedStep(**DRAFTED, was_awaited=index == 0) for index in range(3)]
    steps.append(PlannedStep(**PLAIN))
    for step in steps:
        experience.planned(step)
    assert [step.was_awaited for step in steps] == [True, True, True, False]


def test_a_probe_gains_for_the_budget_or_loses_of_it() -> None:
    """What it loses is limited: the first may have loaded kernels."""
    for seconds, outcomes, saved_s in (
        (0.015, RIGHT, 3 * 0.011 - 0.015),
        (0.020, WRONG, 0.011 - 0.020),
        (5.0, WRONG, -4 * 0.011),
    ):
        experience = empty_budget()
        version = experience.version
        probe = PlannedStep(**DRAFTED, is_probe=True)
        experience.planned(probe)
        experience.observe(probe, seconds, outcomes)
        assert experience.probes.saved_s == pytest.approx(saved_s)
        assert experience.version == version + 1, "a probe alone may change the decision"


@pytest.mark.parametrize(
    ("seconds", "paid_s"), [(0.008, 0.0), (0.013, 0.002), (0.022, 0.011), (1.0, 0.011)]
)
def test_a_probe_pays_for_the_step_that_it_kept_from_overlapping(
    seconds: float, paid_s: float
) -> None:
    """And for that one only."""
    experience = empty_budget()
    steps = [PlannedStep(**DRAFTED, is_probe=True), PlannedStep(**PLAIN), PlannedStep(**PLAIN)]
    for step in steps:
        experience.planned(step)
    assert [step.follows_probe for step in steps] == [False, True, False]
    experience.observe(steps[1], seconds, [])
    assert experience.probes.saved_s == pytest.approx(-paid_s, abs=1e-4)


def test_a_probe_for_which_there_were_no_drafts_is_saved_up_for_anew() -> None:
    experience = Experience(COSTS)
    experience.probes.begin(0.011)
    experience.planned(PlannedStep(**PLAIN))
    assert experience.probes.saved_s > 0
    experience.planned(PlannedStep(**DRAFTED, is_probe=True))
    assert experience.probes.saved_s > 0
    experience.planned(PlannedStep(**PLAIN, is_probe=True))
    assert experience.probes.saved_s == 0


def test_probes_that_fail_save_more_slowly() -> None:
    """Of three drafts that were judged one was right: neither good nor bad."""
    saved = []
    for num_right in (0, 1, 3):
        experience = Experience(COSTS)
        probe = PlannedStep(**DRAFTED, is_probe=True)
        experience.planned(probe)
        experience.observe(probe, 0.015, [(str(i), 3, num_right) for i in range(8)])
        experience.probes.saved_s = 0.0
        experience.pass_by(8, 10)
        saved.append(experience.probes.saved_s)
    assert saved == [pytest.approx(0.005 * 10 * 0.011 * part) for part in (0.5, 1, 1)]


def test_the_budget_grows_with_the_time_without_drafts() -> None:
    """Whether the steps were timed or not, and while they are measured between steps with drafts,
    too."""
    experience = empty_budget()
    decoded(experience, 0, 0.011, 1)
    experience.probes.saved_s = 0.0
    decoded(experience, 0, 0.011, STEPS_PER_UPDATE)
    share_of_step = 0.005 * 0.011
    assert experience.probes.saved_s == pytest.approx(STEPS_PER_UPDATE * share_of_step)
    experience.pass_by(8, 5)
    assert experience.acceptance._num_idle_steps >= 5
    experience.pass_by(8, 0)
    assert experience.probes.saved_s == pytest.approx((STEPS_PER_UPDATE + 5) * share_of_step)
    decoded(experience, 3, 0.015, 16)
    assert not experience.remeasurement.is_idle
    decoded(experience, 0, 0.011)
    experience.probes.saved_s = 0.0
    decoded(experience, 0, 0.011)
    assert experience.probes.saved_s == pytest.approx(share_of_step, rel=0.02)


def test_patience_is_what_waiting_gains_in_the_mean_and_its_losses_are_paid_for() -> None:
    for is_awaited, seconds, outcomes, patience_s, saved_s in (
        (True, 0.015, RIGHT, 0.02 * 0.018, 0.0),
        (True, 0.016, WRONG, 0.02 * -0.005, -0.005),
        (True, 0.500, WRONG, 0.02 * -0.011, -0.011),
        (False, 0.500, WRONG, 0.0, 0.0),
    ):
        experience = empty_budget()
        step = PlannedStep(**DRAFTED, was_awaited=is_awaited)
        experience.planned(step)
        experience.observe(step, seconds, outcomes)
        assert experience.patience_s == pytest.approx(patience_s)
        assert experience.probes.saved_s == pytest.approx(saved_s)


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize(("outcomes", "seconds"), [(RIGHT, 0.020), (WRONG, 0.022)])
def test_steps_put_together_teach_what_they_would_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    outcomes: list[tuple[str, int, int]],
    seconds: float,
    is_awaited: bool,
) -> None:
    learned = []
    for num_familiar in (10_000, 8):
        monkeypatch.setattr(engine.spec.experience, "_NUM_FAMILIAR", num_familiar)
        experience = empty_budget()
        for _ in range(32 + 5 * STEPS_PER_UPDATE):
            step = PlannedStep(**DRAFTED, was_awaited=is_awaited, exposed_s=0.002, drafting_s=0.001)
            experience.planned(step)
            experience.observe(step, seconds, outcomes)
        experience.observe_streak([])
        assert not experience.remeasurement.is_idle
        learned.append(
            [
                experience.patience_s,
                experience.probes.saved_s,
                experience.costs.uniform(8, 3),
                experience.remeasurement._num_drafting,
                *experience.acceptance.rates,
                *experience.newcomers._num_tokens.values(),
                experience._exposure.lost_s(PlannedStep(**PLAIN | {"exposed_s": 0.01}), 0.02),
                experience._exposure.caught_up_s(PlannedStep(**DRAFTED, drafting_s=0.01)),
            ]
        )
    one_by_one, together = learned
    assert together == pytest.approx(one_by_one, rel=0.03)
    assert together[2] == pytest.approx(seconds, rel=0.05)


def test_steps_of_different_kinds_are_not_put_together() -> None:
    experience = Experience(COSTS)
    for batch, seconds in ((64, 0.050), (8, 0.015)):
        decoded(experience, 3, seconds, 40, batch)
    experience.observe_streak([])
    seen = [experience.costs.num_seen(batch, 3, 3 * batch) for batch in (64, 8)]
    for batch, seconds in ((64, 0.050), (8, 0.015)):
        decoded(experience, 3, seconds, 3, batch)
    decoded(experience, 0, 0.011, 1)
    found = [experience.costs.num_seen(batch, 3, 3 * batch) for batch in (64, 8)]
    assert found[1] - seen[1] == 3
    assert found[0] - seen[0] == 2, "the first came behind a smaller batch"
    assert experience.costs.uniform(64, 3) == pytest.approx(0.050, rel=0.05)
    assert experience.costs.uniform(8, 3) == pytest.approx(0.015, rel=0.05)


def test_steps_without_drafts_teach_together_what_they_would_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learned = []
    for num_steps in (1, STEPS_PER_UPDATE):
        monkeypatch.setattr(engine.spec.experience, "STEPS_PER_UPDATE", num_steps)
        experience = empty_budget()
        experience.acceptance.observe(RIGHT * 20)
        for batch, seconds in ((64, 0.020), (8, 0.012)):  # of one size, and then of another
            decoded(experience, 0, seconds, 43, batch)
        decoded(experience, 3, 0.040)
        tries = experience.acceptance._positions[0].long.tries
        assert tries - 8 == pytest.approx(160 * 0.999**86, rel=0.01), "what was right is long ago"
        assert experience.newcomers._num_tokens[6] == 43 * 64
        learned.append(
            [
                experience.probes.saved_s,
                experience.costs.uniform(8, 0),
                experience.costs.uniform(64, 0),
                *experience.acceptance.rates,
                *experience.newcomers._num_tokens.values(),
            ]
        )
    one_by_one, together = learned
    assert together == pytest.approx(one_by_one, rel=0.01)
    assert together[1] == pytest.approx(0.012, rel=0.05)
    assert together[2] == pytest.approx(0.020, rel=0.05)


@pytest.mark.parametrize("length", [0, 3])
def test_one_step_that_something_interrupts_is_no_measure_of_the_others(length: int) -> None:
    usual_s = 0.012 if length == 0 else 0.017
    experience = Experience(COSTS)
    decoded(experience, length, usual_s, 1 + 32 + STEPS_PER_UPDATE)
    before = experience.costs.uniform(8, length)
    for index in range(STEPS_PER_UPDATE):
        decoded(experience, length, 5.0 if index == 3 else usual_s)
    assert experience.costs.uniform(8, length) == pytest.approx(before, rel=0.25)


def test_drafts_are_accepted_as_often_after_a_streak_and_it_is_judged_anew() -> None:
    experience = Experience(COSTS)
    experience.observe_streak(RIGHT * 20)
    assert experience.version == 1
    first, second, third = experience.acceptance.rates
    assert min(first, second) > 0.9
    assert third < 0.1


def test_of_a_request_that_ended_nothing_is_remembered() -> None:
    """Neither of its drafts in steps that are still to be learned from."""
    experience = Experience(COSTS)
    decoded(experience, 3, 0.015, 36)
    assert experience._drafted.steps
    for index in range(8):
        experience.drop(str(index))
    assert not experience.acceptance._requests
    decoded(experience, 0, 0.011, 20)
    assert not experience.acceptance._requests


@pytest.mark.parametrize("by_request", [True, False])
def test_rates_of_single_requests_are_kept_where_they_are_asked_for(by_request: bool) -> None:
    experience = Experience(COSTS, by_request=by_request)
    experience.observe_streak([("good", 3, 3), ("bad", 3, 0)] * 20)
    (good, _), (bad, _) = experience.acceptance.of_each(["good", "bad"])
    assert (good > 0.8 and bad < 0.2) if by_request else good == bad


def test_an_untypical_step_tells_at_most_that_it_can_be_faster() -> None:
    """As long as few of the kind were seen; of prompts' steps and the last of a burst nothing."""
    cases: list[tuple[dict[str, Any], float, bool]] = [
        ({}, 0.012, True),
        ({}, 0.018, False),
        ({"only_decodes": False}, 0.012, False),
        ({"is_last": True}, 0.012, False),
    ]
    for fields, seconds, is_taken in cases:
        experience = Experience(COSTS)
        experience.planned(PlannedStep(**PLAIN))
        for _ in range(2):
            experience.before = PlannedStep(**PLAIN)
            step = PlannedStep(**DRAFTED, **fields)
            experience.planned(step)
            assert not step.is_typical
            experience.observe(step, seconds, RIGHT)
        assert experience.costs.num_seen(8, 3, 24) == (2 if is_taken else 0)


def test_of_a_step_behind_a_prompt_the_catching_up_is_subtracted() -> None:
    """Once its drafting is known in steps that had nothing to catch up with."""
    experience = Experience(COSTS)
    for _ in range(2):
        prompts = PlannedStep(**PLAIN | {"only_decodes": False})
        experience.planned(prompts)
        step = PlannedStep(**DRAFTED, drafting_s=0.010)
        experience.planned(step)
        assert step.follows_others
        experience.observe(step, 0.025, RIGHT)
    assert experience.costs.num_seen(8, 3, 24) == 2
    assert experience.costs.uniform(8, 3) == pytest.approx(0.015, rel=0.05)


@pytest.mark.parametrize(
    ("overlaps", "is_drafting", "exposed_s", "lost_s"),
    [
        (True, True, 0.005, 0.005),
        (True, True, 0.5, 0.011),  # it could hide behind a step
        (False, True, 0.005, 0.0),  # nor would it be hidden without drafts
        (True, False, 0.005, 0.0),
    ],
)
def test_drafts_cost_what_newcomers_hold_up_because_of_them(
    overlaps: bool, is_drafting: bool, exposed_s: float, lost_s: float
) -> None:
    experience = empty_budget()
    experience.overlaps = overlaps
    fields = {"only_decodes": False, "num_new": 1, "exposed_s": exposed_s}
    step = PlannedStep(**PLAIN | fields)
    experience.planned(step)
    experience.observe(step, 0.02, [], is_drafting=is_drafting)
    assert experience.newcomers._lost_s == pytest.approx(lost_s)
    assert experience.newcomers._num_came == pytest.approx(float(is_drafting))


@pytest.mark.parametrize(
    ("seconds", "is_probe", "lost_s"),
    [(0.025, False, 0.010), (0.010, False, 0.0), (0.025, True, 0.0)],
)
def test_the_step_in_which_a_network_catches_up_counts_for_the_newcomers(
    seconds: float, is_probe: bool, lost_s: float
) -> None:
    experience = empty_budget()
    experience.planned(PlannedStep(**PLAIN | {"only_decodes": False}))
    step = PlannedStep(**DRAFTED, is_probe=is_probe)
    experience.planned(step)
    experience.observe(step, seconds, WRONG)
    assert experience.newcomers._lost_s == pytest.approx(lost_s)


@pytest.mark.parametrize("length", [0, 3])
def test_the_last_step_of_a_burst_is_no_measure(length: int) -> None:
    """From result to result it takes less than a whole step."""
    experience = Experience(COSTS)
    decoded(experience, length, 0.015, 1 + 2 * STEPS_PER_UPDATE)
    before = experience.costs.uniform(8, length), experience.costs.num_seen(8, length, 8 * length)
    for _ in range(2 * STEPS_PER_UPDATE):
        step = PlannedStep(**(DRAFTED if length else PLAIN), is_last=True)
        experience.planned(step)
        experience.observe(step, 0.001, RIGHT if length else [])
    after = experience.costs.uniform(8, length), experience.costs.num_seen(8, length, 8 * length)
    assert after == pytest.approx(before)


def test_steps_count_towards_the_next_measurement_but_for_probes() -> None:
    """And each of its steps may change the decision."""
    experience = Experience(COSTS)
    for _ in range(20):
        probe = PlannedStep(**DRAFTED, is_probe=True)
        experience.planned(probe)
        experience.observe(probe, 0.015, RIGHT)
    assert experience.remeasurement.is_idle
    step = PlannedStep(**DRAFTED, num_like=16)
    experience.planned(step)
    experience.observe(step, 0.015, RIGHT)
    assert experience.remeasurement.is_due(1.0, num_known=0)
    for _ in range(3):
        version = experience.version
        decoded(experience, 0, 0.011)
        assert experience.version == version + 1


def test_a_probe_is_judged_at_once_however_familiar_its_kind() -> None:
    experience = Experience(COSTS)
    decoded(experience, 3, 0.015, 40)
    experience.probes.saved_s, version = 0.0, experience.version
    probe = PlannedStep(**DRAFTED, is_probe=True)
    experience.planned(probe)
    assert probe.is_typical
    experience.observe(probe, 0.015, RIGHT)
    assert experience.probes.saved_s > 0
    assert experience.version > version


def test_what_was_collected_is_learned_before_a_step_of_another_kind() -> None:
    experience = Experience(COSTS)
    decoded(experience, 0, 0.011, 2)
    assert experience._plain.seconds
    experience.observe(PlannedStep(**PLAIN, is_typical=False), 0.011, [])
    assert not experience._plain.seconds
    assert experience.costs.num_seen(8, 0, 0) >= 1
