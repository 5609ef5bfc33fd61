from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.spec.probes import PROBE_SHARE, Probe, ProbeBudget

PLAIN_S = 0.01


def num_steps(probe: Probe, num_requests: int, num_right: int) -> int:
    """Of a probe of two drafts each, which is judged a step later."""
    probe.planned(2, num_requests)
    count = 1
    while probe.length:
        assert probe.length == 2
        probe.planned(2, num_requests)
        count += 1
        probe.judge(num_right, num_requests)
    return count


def test_a_probe_goes_on_until_it_says_something() -> None:
    probe = Probe()
    assert probe.length == 0
    assert [num_steps(probe, n, n) for n in (1, 2, 3, 8)] == [8, 4, 3, 1]


def test_a_probe_ends_where_all_is_wrong() -> None:
    probe = Probe()
    assert [num_steps(probe, n, 0) for n in (1, 2, 3)] == [4, 3, 2]
    assert num_steps(probe, 1, 1) == 8, "the next one begins anew"


def test_a_probe_ends_with_its_requests() -> None:
    probe = Probe()
    probe.planned(3, 1)
    assert probe.length == 3
    probe.end()
    assert probe.length == 0


def test_the_first_probes_are_paid_in_advance() -> None:
    budget = ProbeBudget()
    budget.begin(PLAIN_S)
    assert budget.saved_s == 2 * PLAIN_S
    budget.save(-0.03, PLAIN_S)
    budget.begin(PLAIN_S)
    assert budget.saved_s < 0, "only once"


def test_who_passes_saves_anew() -> None:
    budget = ProbeBudget()
    budget.begin(PLAIN_S)
    budget.pass_turn()
    assert budget.saved_s == 0.0


def test_what_a_large_batch_owes_a_small_one_does_not_pay_back() -> None:
    budget = ProbeBudget()
    budget.begin(PLAIN_S)
    budget.save(-6 * PLAIN_S, PLAIN_S)
    budget.rest(0.0, PLAIN_S)
    assert -4 * PLAIN_S <= budget.saved_s < -3.9 * PLAIN_S
    budget.rest(0.0, PLAIN_S / 100)
    assert budget.saved_s == -4 * PLAIN_S / 100


def test_it_is_known_when_a_probe_is_due() -> None:
    budget = ProbeBudget()
    budget.begin(PLAIN_S)
    assert budget.num_steps_to(PLAIN_S, PLAIN_S) == 0
    budget.pass_turn()
    num_steps = budget.num_steps_to(PLAIN_S, PLAIN_S)
    assert num_steps == 1 / PROBE_SHARE
    budget.rest((num_steps - 1) * PLAIN_S, PLAIN_S)
    assert budget.saved_s < PLAIN_S
    budget.rest(1.01 * PLAIN_S, PLAIN_S)
    assert budget.saved_s >= PLAIN_S
    budget.pass_turn()
    budget.judge(0, 10)
    assert budget.num_steps_to(PLAIN_S, PLAIN_S) == 2 / PROBE_SHARE, "half of the share"


def test_where_hardly_a_draft_is_right_probes_cost_less_and_less() -> None:
    budget = ProbeBudget()
    shares = []
    for num_hits in (0, 1, 0, 3, 5, 9, 2, 1):
        budget.judge(num_hits, 10)
        budget.save(-budget.saved_s, PLAIN_S)
        budget.rest(PLAIN_S, PLAIN_S)
        shares.append(round(budget.saved_s / PLAIN_S / PROBE_SHARE, 3))
    assert shares == [0.5, 0.25, 0.25, 0.25, 0.25, 1.0, 1.0, 0.5]
    budget.judge(0, 0)
    assert budget.saved_s > 0, "who had no idea says nothing"


@given(st.lists(st.integers(0, 400), min_size=1, max_size=50), st.floats(0.001, 0.02))
def test_probes_cost_no_more_than_their_share(rests: list[int], cost_s: float) -> None:
    """Whenever they are due, and whatever they cost."""
    budget = ProbeBudget()
    budget.begin(PLAIN_S)
    plain_s = probed_s = 0.0
    for num_steps in rests:
        for _ in range(num_steps):
            plain_s += PLAIN_S
            budget.save(PROBE_SHARE * PLAIN_S, PLAIN_S)
        assert budget.saved_s <= 2 * PLAIN_S
        while budget.saved_s >= cost_s:
            probed_s += cost_s
            budget.save(-cost_s, PLAIN_S)
    assert probed_s <= PROBE_SHARE * plain_s + 2 * PLAIN_S + 1e-9
