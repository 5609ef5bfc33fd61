from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.scheduler.forecast import Growth, GrowthForecast
from tests.engine.scheduler.harness import Harness
from tests.engine.scheduler.making import make_request


class TestExpectedLength:
    def expected(self, seen: list[int], generated: list[int]) -> list[float]:
        forecast = GrowthForecast(4)
        for length in seen:
            forecast.observe(length)
        lengths = forecast.expected_length(np.array(generated, dtype=np.float64))
        return [float(length) for length in lengths]

    def test_it_is_the_mean_of_the_longer_ones(self) -> None:
        assert self.expected([10, 20, 60], [0, 10, 20, 59]) == [30, 40, 60, 60]

    def test_beyond_all_seen_it_is_expected_to_last_as_long_again(self) -> None:
        assert self.expected([10], [500, 10]) == [1000, 256]

    def test_with_nothing_seen_there_is_a_prior(self) -> None:
        assert self.expected([], [0]) == [256]

    def test_only_the_latest_count(self) -> None:
        assert self.expected([9_000] * 10 + [10] * 512, [0]) == [10]


def simulated_peak(remaining: list[int], held: list[int], lacking: list[int]) -> int:
    """Step by step: those still running have grown by t, the others have given back."""
    return max(
        sum(t + lack for r, lack in zip(remaining, lacking, strict=True) if r >= t)
        - sum(h for r, h in zip(remaining, held, strict=True) if r < t)
        for t in range(max(remaining) + 1)
        if t in remaining
    )


REQUESTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 50), st.integers(-3, 3)), min_size=1, max_size=12
)


def distinct_ends(
    requests: list[tuple[int, int, int]],
) -> tuple[list[int], list[int], list[int]]:
    """The formula lets requests that end at the same time go one after the other."""
    distinct = list({remaining: (held, lack) for remaining, held, lack in requests}.items())
    return (
        [remaining for remaining, _ in distinct],
        [held for _, (held, _) in distinct],
        [lack for _, (_, lack) in distinct],
    )


def growth(columns: tuple[list[int], list[int], list[int]]) -> Growth:
    return Growth.of(*(np.array(column, dtype=np.float64) for column in columns))


@given(REQUESTS)
def test_one_more_request_is_what_a_simulation_says(requests: list[tuple[int, int, int]]) -> None:
    remaining, held, lacking = columns = distinct_ends(requests)
    rest = growth((remaining[1:], held[1:], lacking[1:]))
    assert rest.peak_with(remaining[0], held[0], lacking[0]) == simulated_peak(*columns)


class TestPeakBlocks:
    def test_a_request_alone_needs_what_it_has_left(self) -> None:
        forecast = GrowthForecast(4)
        forecast.begin_step([])
        request = make_request(0, num_prompt_tokens=8, max_tokens=20)
        # 20 slots and, for the block begun last, half a block.
        assert forecast.peak_blocks(request, 8) == 6

    def test_who_ends_before_makes_room(self) -> None:
        forecast = GrowthForecast(4)
        short = make_request(0, num_prompt_tokens=40, max_tokens=4, num_blocks=10)
        forecast.begin_step([short])
        longer = make_request(1, num_prompt_tokens=8, max_tokens=20)
        # At the end of the short one both have grown by 4 slots; it gives 40 back after that.
        assert forecast.peak_blocks(longer, 8) == 3

    def test_what_comes_in_counts_for_the_next(self) -> None:
        forecast = GrowthForecast(4)
        forecast.begin_step([])
        request = make_request(0, num_prompt_tokens=8, max_tokens=20)
        alone = forecast.peak_blocks(request, 8)
        assert forecast.peak_blocks(request, 8) == alone
        forecast.admit()
        assert forecast.peak_blocks(request, 8) == 2 * alone - 1

    @pytest.mark.parametrize("in_next_step", [False, True])
    def test_what_was_seen_shortens_what_is_expected(self, in_next_step: bool) -> None:
        forecast = GrowthForecast(4)
        request = make_request(0, num_prompt_tokens=8, max_tokens=500)
        forecast.begin_step([])
        before = forecast.peak_blocks(request, 8)
        for _ in range(20):
            forecast.observe(6)
        if in_next_step:
            forecast.begin_step([])
        assert forecast.peak_blocks(request, 8) == 2
        assert before == pytest.approx(64.5, abs=0.5), "the prior of 256 tokens"

    def test_a_prompt_without_blocks_counts_as_growth(self) -> None:
        forecast = GrowthForecast(4)
        forecast.begin_step([])
        request = make_request(0, num_prompt_tokens=80, max_tokens=2)
        assert forecast.peak_blocks(request, 8) == pytest.approx((72 + 2 + 2) / 4)

    def test_a_window_needs_no_more_than_it_sees(self) -> None:
        forecast = GrowthForecast(4, (6,))
        forecast.begin_step([])
        long = make_request(0, num_prompt_tokens=40, max_tokens=20)
        assert forecast.peak_blocks(long, 8) == 1  # 6 + 4 slots, less 8, and half a block
        short = make_request(1, num_prompt_tokens=2, max_tokens=3)
        assert forecast.peak_blocks(short, 0) == 2


RUNNING = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(0, 40), st.integers(1, 20)),
    min_size=1,
    max_size=6,
)


@given(
    RUNNING,
    st.sampled_from([(None,), (None, 6), (6,), (None, None, 9)]),
    st.none() | st.integers(1, 60),
)
def test_who_runs_counts_as_when_it_was_admitted(
    rows: list[tuple[int, int, int, int]], windows: tuple[int | None, ...], seen: int | None
) -> None:
    forecasts = [GrowthForecast(4, windows) for _ in range(2)]
    requests = []
    ends = set()
    for arrival, (num_prompt, num_generated, num_left, num_blocks) in enumerate(rows):
        request = make_request(
            arrival,
            num_prompt_tokens=num_prompt,
            num_generated=num_generated,
            max_tokens=num_generated + num_left,
            num_blocks=num_blocks,
        )
        requests.append(request)
        longer = seen is not None and seen > num_generated
        expected = seen if longer and seen is not None else max(2 * num_generated, 256)
        ends.add(min(expected - num_generated, num_left))
    assume(len(ends) == len(rows))  # of those that end together, either may be first
    *running, newcomer = requests
    for forecast in forecasts:
        if seen is not None:
            forecast.observe(seen)
    forecasts[0].begin_step(running)
    forecasts[1].begin_step([])
    for request in running:
        forecasts[1].peak_blocks(request, request.block_table.num_held * 4)
        forecasts[1].admit()
    assert len({forecast.peak_blocks(newcomer, 8) for forecast in forecasts}) == 1


@given(RUNNING, st.integers(0, 200), st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_bound_is_returned_only_where_it_decides_like_the_peak(
    rows: list[tuple[int, int, int, int]], num_enough: int, exact: list[bool]
) -> None:
    bounded, precise = GrowthForecast(4), GrowthForecast(4)
    running = [make_request(99, num_prompt_tokens=9, num_generated=2, max_tokens=30, num_blocks=3)]
    bounded.begin_step(running)
    precise.begin_step(running)
    for arrival, (row, is_exact) in enumerate(zip(rows, exact, strict=False)):
        num_prompt, num_generated, num_left, num_blocks = row
        request = make_request(
            arrival,
            num_prompt_tokens=num_prompt,
            num_generated=num_generated,
            max_tokens=num_generated + num_left,
        )
        peak = precise.peak_blocks(request, num_blocks * 4)
        found = bounded.peak_blocks(request, num_blocks * 4, -1 if is_exact else num_enough)
        assert found >= peak
        assert (found <= num_enough) == (peak <= num_enough)
        if is_exact or peak > num_enough:
            assert found == peak
        bounded.admit()
        precise.admit()


def test_a_step_admits_no_more_than_will_fit_together() -> None:
    harness = Harness(forecast_admission=True, num_blocks=20, enable_prefix_caching=False)
    for name in "abc":
        harness.add(name, 8, max_tokens=24, ignore_eos=True)
    harness.step()
    assert list(harness.scheduler.running) == ["a", "b"], "each has 8 blocks in the end"
    harness.run()
    assert harness.core.stats().num_preemptions == 0


def test_the_lengths_of_what_ends_by_itself_are_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(GrowthForecast, "observe", lambda self, length: seen.append(length))
    harness = Harness(forecast_admission=True)
    harness.add("ends", 3, max_tokens=5, ignore_eos=True)
    harness.add("aborted", 3, max_tokens=9, ignore_eos=True)
    harness.step(2)
    harness.core.abort(["aborted"])
    harness.run()
    assert seen == [5]
