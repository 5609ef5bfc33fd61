from __future__ import annotations

import dataclasses
import random

import pytest

from engine.request import Request
from engine.spec import adaptive
from engine.spec.adaptive import AdaptiveLength, StepCosts
from tests.engine.scheduler.making import make_request

# A GPU while it waits for memory: drafts cost little in a small batch, and much in a large one.
COSTS = StepCosts([1, 16, 64], [10.0, 11.0, 14.0], [10.5, 14.0, 40.0], num_drafts=4)


def requests(count: int) -> list[Request]:
    return [make_request(i) for i in range(count)]


def teach(length: AdaptiveLength, request: Request, chance: float, times: int = 60) -> None:
    rng = random.Random(request.arrival)
    for _ in range(times):
        hits = 0
        while hits < 4 and rng.random() < chance:
            hits += 1
        request.num_draft_tokens += 4
        request.num_accepted_tokens += hits
        length.observe(request)


def test_an_empty_batch_needs_no_drafts() -> None:
    """Where everything was aborted or parked while a step was in flight."""
    assert not AdaptiveLength(COSTS).may_pay([], 0)


def test_costs_between_and_beyond_what_was_measured() -> None:
    assert COSTS.seconds(1, 0) == 10.0
    assert COSTS.seconds(1, 4) == 10.5
    assert COSTS.seconds(1, 2) == 10.25
    assert COSTS.seconds(40, 0) == 12.5
    assert COSTS.seconds(128, 0) == 28.0
    assert COSTS.seconds(64, 256) == 40.0


def test_without_costs_every_draft_pays() -> None:
    length = AdaptiveLength(None)
    first, second = requests(2)
    assert length.lengths({first: 3, second: 1}, 2) == {first: 3, second: 1}
    assert length.even_length({first: 3, second: 1}, 2) == 3
    assert length.may_pay([first], 500)


@pytest.mark.parametrize(("chance", "batch", "pays"), [(0.9, 1, True), (0.2, 64, False)])
def test_drafts_pay_where_they_are_right_and_cheap(chance: float, batch: int, pays: bool) -> None:
    length, group = AdaptiveLength(COSTS), requests(batch)
    for request in group:
        teach(length, request, chance)
    asked = dict.fromkeys(group, 4)
    assert (length.even_length(asked, batch) > 0) == pays
    assert any(length.lengths(asked, batch).values()) == pays
    assert length.may_pay(group, batch) == pays


def test_whose_drafts_are_right_gets_more() -> None:
    length, group = AdaptiveLength(COSTS), requests(16)
    for i, request in enumerate(group):
        teach(length, request, 0.95 if i < 8 else 0.05)
    lengths = length.lengths(dict.fromkeys(group, 4), 16)
    assert min(lengths[r] for r in group[:8]) == 4
    assert max(lengths[r] for r in group[8:]) <= 1


def goodput(chances: list[float], lengths: list[int], batch: int) -> float:
    tokens = batch + sum(
        c**place for c, n in zip(chances, lengths, strict=True) for place in range(1, n + 1)
    )
    return tokens / COSTS.seconds(batch, sum(lengths))


@pytest.mark.parametrize("batch", [1, 3, 20, 64])
def test_no_other_choice_of_one_length_is_faster(batch: int) -> None:
    length, group = AdaptiveLength(COSTS), requests(batch)
    for i, request in enumerate(group):
        teach(length, request, 0.2 + 0.7 * (i % 5) / 4)
    chances = [length._chances[request].value for request in group]
    asked = dict.fromkeys(group, 4)
    chosen = goodput(chances, list(length.lengths(asked, batch).values()), batch)
    for other in range(5):
        assert chosen >= goodput(chances, [other] * batch, batch) - 1e-9
    even = length.even_length(asked, batch)
    best = max(goodput(chances, [n] * batch, batch) for n in range(5))
    assert goodput(chances, [even] * batch, batch) == pytest.approx(best)


def test_all_or_none_where_fewer_drafts_save_nothing() -> None:
    costs = dataclasses.replace(COSTS, all_or_none=True)
    for chance, batch, drafts in ((0.9, 16, 4), (0.35, 64, 0)):
        length, group = AdaptiveLength(costs), requests(batch)
        for request in group:
            teach(length, request, chance)
        asked = dict.fromkeys(group, 4)
        assert length.even_length(asked, batch) == drafts
        assert set(length.lengths(asked, batch).values()) == {drafts}


def test_it_learns_that_drafting_is_slower_than_the_table_says() -> None:
    length, (request,) = AdaptiveLength(COSTS), requests(1)
    teach(length, request, 0.5)
    now = 0.0
    assert length.even_length({request: 4}, 1) > 0
    for _ in range(60):
        length.step_begins(now, 1, 4)
        now += 30.0  # Of which the table knows 10.5.
    assert length.even_length({request: 4}, 1) == 0


def test_it_tries_again_after_a_while() -> None:
    length, (request,) = AdaptiveLength(COSTS), requests(1)
    teach(length, request, 0.0)
    now = 0.0
    while length.even_length({request: 4}, 1) == 0:
        length.step_begins(now, 1, 0)
        now += 10.0
        assert now < 10.0 * 2 * adaptive._PROBE_INTERVAL
    assert now >= 10.0 * (adaptive._PROBE_INTERVAL - 1)
    assert length.is_probe
    length.step_begins(now, 1, 4)
    length.forget_step()
    assert not length.is_probe
    for _ in range(adaptive._PROBE_INTERVAL + 1):
        length.step_begins(now, 1, 0)
        length.forget_step()
    assert not length.is_probe, "it was in vain, so the next one waits longer"
    teach(length, request, 1.0, times=10)
    assert length.even_length({request: 4}, 1) == 4


def test_other_work_and_idle_times_teach_nothing() -> None:
    length, (request,) = AdaptiveLength(COSTS), requests(1)
    length.step_begins(0.0, 1, 0)
    length.forget_step()
    length.step_begins(70.0, 1, 0)
    assert length._ratio == 1.0
    length.step_begins(1000.0, 1, 0)  # Nobody came for a long time.
    assert length._ratio == 1.0
    length.observe(request)
    length.drop(request)
    assert not length._chances
