from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import pytest

from engine.request import Request
from engine.spec.adaptive import AdaptiveLength
from engine.spec.costs import StepCosts
from engine.spec.planned_step import PlannedStep
from tests.engine.scheduler.making import make_request
from tests.engine.spec.simulation import (
    BATCHES,
    H200,
    LENGTHS,
    Run,
    best_fixed,
    constant,
    padded,
)

# Where a processor waits for memory: drafts cost little in a small batch, and much in a large one.
COSTS = StepCosts(
    [1, 16, 64], [0, 1, 4], [[10.0, 11.0, 14.0], [10.1, 11.8, 20.0], [10.5, 14.0, 40.0]]
)
# Steps really take other times than the table says, each kind by a factor of its own.
TRUE = padded(
    StepCosts(
        BATCHES,
        LENGTHS,
        [
            [seconds * (1.12 + length / 50 if length else 0.93) for seconds in row]
            for length, row in enumerate(H200.taken_s)
        ],
    )
)
TABLE = padded(H200)


def requests(count: int) -> list[Request]:
    return [make_request(i) for i in range(count)]


def teach(length: AdaptiveLength, chances: dict[Request, float], times: int = 60) -> None:
    rng = random.Random(0)
    for _ in range(times):
        outcomes = []
        for request, chance in chances.items():
            right = 0
            while right < 4 and rng.random() < chance:
                right += 1
            outcomes.append((request.request_id, 4, right))
        step = PlannedStep(len(chances), 4, 4 * len(chances), 0.0, only_decodes=False)
        length.planned(step)
        length.observe(step, 0.0, outcomes)
    for _ in range(8):
        # It is time for some steps without drafts.
        step = PlannedStep(len(chances), 0, 0, 0.0, is_last=True)
        length.planned(step)
        length.observe(step, 0.0, [])


# ---- in the long run ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4, 16, 64, 128, 256])
@pytest.mark.parametrize(
    "rates",
    [(0.05,), (0.3,), (0.45,), (0.6,), (0.8,), (0.95,), (0.8, 0.5, 0.3, 0.2)],
    ids=lambda rates: "-".join(map(str, rates)),
)
def test_as_fast_as_the_best_length_and_never_slower_than_none(
    batch: int, rates: Sequence[float]
) -> None:
    """Learning and probing included, with a table that is wrong. Where the best length gains
    little, noise may hide it for a while."""
    run = Run(TABLE, batch, constant(*rates), TRUE, seed=batch)
    speed = run.speed(until=12.0)
    best, length = best_fixed(TRUE, batch, rates)
    plain = batch / TRUE.seconds(batch, 0, 0)
    assert speed > 0.96 * best, f"{length} drafts are best, {run.steps[-5:]} were chosen"
    assert speed > 0.98 * plain


@pytest.mark.parametrize("batch", [1, 8, 32, 128])
def test_where_costs_are_as_measured_what_is_chosen_is_as_fast_as_the_best(batch: int) -> None:
    """Within 2 % on average, once acceptance is known, whatever it is; with all probes."""
    rng, ratios = random.Random(batch), []
    plain = batch / TABLE.seconds(batch, 0, 0)
    for seed in range(16):
        rates = [rng.uniform(0.05, 0.98) for _ in range(rng.randint(1, 5))]
        run = Run(TABLE, batch, constant(*rates), jitter=0.01, seed=seed)
        for _ in range(600):
            run.step()
        speed = run.speed(until=run.now + 400 * TABLE.seconds(batch, 0, 0))
        best, _ = best_fixed(TABLE, batch, rates)
        assert speed > 0.98 * plain
        ratios.append(speed / best)
    assert statistics.mean(ratios) > 0.98
    assert min(ratios) > 0.93


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_it_follows_changes_of_acceptance(batch: int) -> None:
    """Low, high, and low again; when the next probe is due is luck."""
    high, found_out = 0.85, []
    plain = batch / TRUE.seconds(batch, 0, 0)
    best, _ = best_fixed(TRUE, batch, (high,))
    for seed in range(3):
        run = Run(TABLE, batch, lambda now: (high if 6 < now < 14 else 0.05,), TRUE, seed=seed)
        assert run.speed(until=6) > 0.98 * plain
        run.speed(until=10)  # Some seconds to find out.
        found_out.append(run.speed(until=14))
        run.speed(until=14.5)
        assert run.speed(until=22) > 0.98 * plain
    assert statistics.median(found_out) > 0.96 * best


def test_fixed_lengths_lose_where_it_does_not() -> None:
    """What the other tests compare with is no straw man."""
    assert Run(TABLE, 64, constant(0.3), TRUE).speed(until=2, fixed=4) < 0.6 * 64 / 0.0063


def test_probes_cost_less_than_a_hundredth() -> None:
    run = Run(TABLE, 64, constant(0.0), TRUE)
    run.speed(until=30)
    assert 4 < run.num_probes < 20, "as all of them show the same"
    assert run.num_tokens / run.now > 0.99 * 64 / TRUE.seconds(64, 0, 0)


def test_where_nothing_could_pay_nothing_is_probed() -> None:
    hopeless = StepCosts([1], [0, 1, 2], [[1.0], [2.5], [4.0]])
    run = Run(hopeless, 1, constant(0.5))
    run.speed(until=3000)
    assert run.num_probes == sum(run.steps) == 0


def test_a_table_that_is_far_off_is_found_out() -> None:
    """Everything takes a tenth of what it took at the start."""
    fast = StepCosts(BATCHES, LENGTHS, [[s / 10 for s in row] for row in H200.taken_s])
    run = Run(padded(H200), 64, constant(0.9), padded(fast), transition_s=0.0002)
    run.speed(until=1.0)
    best, _ = best_fixed(fast, 64, (0.9,))
    assert run.speed(until=2.0) > 0.97 * best


# ---- one decision -------------------------------------------------------------------------------


def test_an_empty_batch_needs_no_drafts() -> None:
    """Where everything was aborted or parked while a step was in flight."""
    length = AdaptiveLength(COSTS)
    assert not length.may_pay([], 0)
    assert length.probe_length(0, 4) == 0
    length.observe(PlannedStep(0, 0, 0, 0.0), 1.0, [])


@pytest.mark.parametrize(("chance", "batch", "pays"), [(0.9, 1, True), (0.1, 64, False)])
def test_drafts_pay_where_they_are_right_and_cheap(chance: float, batch: int, pays: bool) -> None:
    length, group = AdaptiveLength(COSTS), requests(batch)
    teach(length, dict.fromkeys(group, chance))
    assert (length.uniform_length(batch, 4) > 0) == pays
    assert any(length.lengths(dict.fromkeys(group, 4), batch).values()) == pays
    assert length.may_pay(group, batch) == pays


def test_whose_drafts_are_right_gets_more() -> None:
    length, group = AdaptiveLength(COSTS), requests(16)
    teach(length, {request: 0.95 if i < 8 else 0.02 for i, request in enumerate(group)})
    lengths = length.lengths(dict.fromkeys(group, 4), 16)
    assert min(lengths[r] for r in group[:8]) == 4
    assert max(lengths[r] for r in group[8:]) <= 1


@pytest.mark.parametrize("batch", [1, 3, 20, 64])
def test_no_other_choice_of_one_length_is_faster(batch: int) -> None:
    length, group = AdaptiveLength(COSTS), requests(batch)
    teach(length, {request: 0.2 + 0.7 * (i % 5) / 4 for i, request in enumerate(group)})
    assert length._acceptance is not None
    known = length._acceptance.of_each(request.request_id for request in group)
    chances = dict(zip(group, known, strict=True))

    def goodput(lengths: dict[Request, int]) -> float:
        tokens = batch + sum(
            chances[r][0] * chances[r][1] ** place for r, n in lengths.items() for place in range(n)
        )
        return tokens / COSTS.seconds(batch, max(lengths.values()), sum(lengths.values()))

    chosen = goodput(length.lengths(dict.fromkeys(group, 4), batch))
    for other in range(5):
        # Below the margin that drafts must gain, none count as good as some.
        assert chosen * 1.006 >= goodput(dict.fromkeys(group, other))


def test_where_steps_are_padded_the_longest_draft_counts() -> None:
    length, group = AdaptiveLength(padded(COSTS)), requests(16)
    teach(length, {request: 0.9 if i else 0.0 for i, request in enumerate(group)})
    assert set(length.lengths(dict.fromkeys(group, 4), 16).values()) == {4}
    assert length.may_pay(group, 16)
    # Those that have no idea, or a short one, do not hold up the rest.
    found = {request: 4 if i < 12 else i % 3 for i, request in enumerate(group)}
    assert length.lengths(found, 16) == found
    # One alone does not make up for what the others wait.
    (alone,) = length.lengths({group[1]: 4}, 16).values()
    assert alone == 0
    assert length.uniform_length(16, 4) == 4


def test_it_learns_that_drafting_is_slower_than_the_table_says() -> None:
    length, (request,) = AdaptiveLength(COSTS), requests(1)
    teach(length, {request: 0.5})
    assert length.uniform_length(1, 4) > 0
    for _ in range(60):
        step = PlannedStep(1, 4, 4, 0.0)
        length.planned(step)
        length.observe(step, 30.0, [])  # Of which the table knows 10.5.
    assert length.uniform_length(1, 4) == 0


def test_other_work_teaches_nothing() -> None:
    length = AdaptiveLength(COSTS)
    assert length._costs is not None
    for only_decodes, batch, num_drafts in (
        (False, 1, 0),
        (True, 1, 0),
        (True, 2, 0),
        (True, 1, 4),
    ):
        step = PlannedStep(batch, num_drafts, batch * num_drafts, 0.0, only_decodes=only_decodes)
        length.planned(step)
        # With prompts, after prompts, with a newcomer, after steps without drafts.
        assert not step.is_typical
        length.observe(step, 70.0, [])
    assert length._costs.uniform(1, 0) == 10.0
    step = PlannedStep(1, 4, 4, 0.0)
    length.planned(step)
    assert step.is_typical


@pytest.mark.parametrize("num_steps", [40, 41, 43])
def test_nothing_is_kept_of_requests_that_are_over(num_steps: int) -> None:
    """Though steps are put together before they are learned from."""
    length, (request, other) = AdaptiveLength(COSTS), requests(2)
    for _ in range(num_steps):
        step = PlannedStep(2, 4, 8, 0.0)
        length.planned(step)
        length.observe(step, 14.0, [(request.request_id, 4, 2), (other.request_id, 4, 0)])
    assert length._acceptance is not None
    length.drop(request)
    assert set(length._acceptance._requests) == {other.request_id}
    length.drop(other)
    length.observe(PlannedStep(1, 0, 0, 0.0, only_decodes=False), 10.0, [])
    assert not length._acceptance._requests
