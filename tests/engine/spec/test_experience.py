from __future__ import annotations

import pytest

from engine.spec.costs import StepCosts
from engine.spec.experience import STEPS_PER_UPDATE, Experience
from engine.spec.planned_step import PlannedStep

COSTS = StepCosts([1, 8, 64], [0, 3], [[0.010, 0.011, 0.014], [0.012, 0.015, 0.040]], True)


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
