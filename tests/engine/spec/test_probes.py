from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.spec.probes import PROBE_SHARE, ProbeBudget

PLAIN_S = 0.01


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


def test_where_hardly_a_draft_is_right_probes_cost_less_and_less() -> None:
    budget = ProbeBudget()
    shares = []
    for num_hits in (0, 1, 0, 3, 9, 1):
        budget.judge(num_hits, 10)
        budget.save(-budget.saved_s, PLAIN_S)
        budget.rest(PLAIN_S, PLAIN_S)
        shares.append(round(budget.saved_s / PLAIN_S / PROBE_SHARE, 3))
    assert shares == [0.5, 0.25, 0.25, 0.25, 1.0, 0.5]
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
