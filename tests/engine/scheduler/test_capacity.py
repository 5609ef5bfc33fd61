from __future__ import annotations

from typing import Any

import pytest

from engine.cache.manager import CacheManager
from engine.cache.table import GroupTable, PrefixHit
from engine.request import Request
from engine.scheduler.capacity import Capacity
from engine.scheduler.forecast import GrowthForecast
from engine.scheduler.pictures import Pictures
from tests.engine.scheduler.harness import config
from tests.engine.scheduler.making import make_request


def make_capacity(num_blocks: int = 10, **options: Any) -> tuple[Capacity, CacheManager]:
    options = {"block_size": 4, "watermark": 0.0, "forecast_admission": False} | options
    cache = CacheManager(num_blocks, 4)
    capacity = Capacity(config(**options), cache, Pictures(None, config()))
    capacity.begin_step([])
    return capacity, cache


def test_the_whole_prompt_is_measured_or_only_its_first_chunk() -> None:
    request = make_request(0, num_prompt_tokens=30)
    capacity, _ = make_capacity()
    fit = capacity.fit(request, PrefixHit(), budget=8)
    assert (fit.num_tokens, fit.num_slots, fit.num_lacking) == (8, 30, -2)
    capacity, _ = make_capacity(scheduler_reserve_full_isl=False)
    fit = capacity.fit(request, PrefixHit(), budget=8)
    assert (fit.num_tokens, fit.num_slots, fit.num_lacking) == (8, 8, -8)


def test_the_threshold_cuts_the_first_chunk() -> None:
    capacity, _ = make_capacity(long_prefill_token_threshold=5)
    assert (
        capacity.fit(make_request(0, num_prompt_tokens=30), PrefixHit(), budget=8).num_tokens == 5
    )


def test_the_watermark_counts_only_beside_others() -> None:
    request = make_request(0, num_prompt_tokens=38)
    capacity, _ = make_capacity(watermark=0.2)
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking == 0
    capacity.begin_step([make_request(1, running=True)])
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking == 2


def test_the_forecast_counts_only_beside_others() -> None:
    request = make_request(0, num_prompt_tokens=10, max_tokens=100)
    capacity, _ = make_capacity(forecast_admission=True)
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking < 0
    capacity.begin_step([make_request(1, running=True, max_tokens=100)])
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking > 20


def test_without_a_forecast_it_is_enough_to_fit_for_now() -> None:
    request = make_request(0, num_prompt_tokens=10, max_tokens=100)
    capacity, _ = make_capacity()
    capacity.begin_step([make_request(1, running=True, max_tokens=100)])
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking == 3 - 10
    capacity.observe(make_request(2, num_generated=100))
    capacity.admit()
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking == 3 - 10


def test_every_step_has_a_forecast_of_its_own() -> None:
    request = make_request(0, num_prompt_tokens=10, max_tokens=2)
    capacity, _ = make_capacity(forecast_admission=True)
    capacity.begin_step([make_request(1, running=True, max_tokens=100)])
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking > 0
    capacity.begin_step([make_request(1, running=True, max_tokens=2)])
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking <= 0


def test_who_was_admitted_in_this_step_counts_as_if_it_had_run_before() -> None:
    first, second = (make_request(i, num_prompt_tokens=10, max_tokens=60) for i in (1, 2))
    capacity, _ = make_capacity(num_blocks=200, forecast_admission=True)
    running = [make_request(0, running=True, max_tokens=60)]
    capacity.begin_step(running)
    alone = capacity.fit(second, PrefixHit(), budget=99).num_lacking
    fit = capacity.fit(first, PrefixHit(), budget=99)
    capacity.admit()
    beside = capacity.fit(second, PrefixHit(), budget=99).num_lacking
    assert beside > alone
    first.block_table.num_held = 3
    assert fit.num_slots == 10
    other, _ = make_capacity(num_blocks=200, forecast_admission=True)
    other.begin_step([*running, first])
    assert abs(other.fit(second, PrefixHit(), budget=99).num_lacking - beside) <= 1


def test_the_batch_is_summed_up_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(GrowthForecast, "begin_step", lambda _, running: begun.append(len(running)))
    capacity, _ = make_capacity(num_blocks=50, forecast_admission=True)
    capacity.begin_step([make_request(0, running=True)])
    for number in range(1, 4):
        capacity.fit(
            make_request(number, num_prompt_tokens=5, max_tokens=5), PrefixHit(), budget=99
        )
    assert begun == [1]


def test_outputs_that_end_early_make_room_for_more() -> None:
    request = make_request(0, num_prompt_tokens=10, max_tokens=200)
    running = [make_request(1, running=True, max_tokens=200)]
    capacity, _ = make_capacity(num_blocks=20, forecast_admission=True)
    capacity.begin_step(running)
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking > 0
    for number in range(50):
        capacity.observe(make_request(number, num_generated=4))
    capacity.begin_step(running)
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking <= 0


def test_the_forecast_decides_where_all_fits_for_now() -> None:
    capacity, _ = make_capacity(forecast_admission=True)
    capacity.begin_step([make_request(1, running=True, max_tokens=100)])
    exact = make_request(0, num_prompt_tokens=40, max_tokens=100)
    assert capacity.fit(exact, PrefixHit(), budget=99).num_lacking > 0
    too_big = make_request(0, num_prompt_tokens=41, max_tokens=100)
    assert capacity.fit(too_big, PrefixHit(), budget=99).num_lacking == 1


def with_cached_block(num_blocks: int) -> tuple[Capacity, CacheManager, PrefixHit, Request]:
    """A request of 7 tokens, and a hit that copies some of the only block that is cached."""
    capacity, cache = make_capacity(num_blocks=num_blocks)
    (source,) = cache.pool.allocate(1)
    tokens = make_request(0, num_prompt_tokens=4).token_ids
    table = make_request(0).block_table
    table.layer_groups = [GroupTable([source])]
    cache.publish(table, tokens, 4)
    cache.release(table, tokens)
    request = make_request(1, num_prompt_tokens=7)
    request.token_ids[1] = 9
    hit = cache.lookup(request.block_table, request.token_ids)
    assert hit.num_copied == 1
    return capacity, cache, hit, request


def test_a_copy_that_fits_exactly_is_made() -> None:
    capacity, cache, hit, request = with_cached_block(num_blocks=3)
    fit = capacity.fit(request, hit, budget=99)
    assert (fit.hit.num_copied, fit.num_lacking) == (1, 0)
    assert (fit.num_tokens, fit.num_slots) == (6, 7), "one of the seven is copied"
    cache.pool.allocate(1)
    assert capacity.still_lacking(request) == 0, "nothing was refused"


def test_a_copy_of_a_single_token_is_given_up_like_others() -> None:
    capacity, _, hit, request = with_cached_block(num_blocks=2)
    fit = capacity.fit(request, hit, budget=99)
    assert (fit.hit.num_copied, fit.num_lacking) == (0, 0)


def test_a_copy_is_given_up_when_it_would_not_fit() -> None:
    capacity, cache = make_capacity(num_blocks=3)
    (source,) = cache.pool.allocate(1)
    tokens = make_request(0, num_prompt_tokens=4).token_ids
    table = make_request(0).block_table
    table.layer_groups = [GroupTable([source])]
    cache.publish(table, tokens, 4)
    cache.release(table, tokens)
    request = make_request(1, num_prompt_tokens=11)
    request.token_ids[3] = 9
    hit = cache.lookup(request.block_table, request.token_ids)
    assert hit.num_copied == 3
    fit = capacity.fit(request, hit, budget=99)
    assert fit.hit.num_copied == 0
    assert fit.num_lacking == 0


def test_a_refusal_is_remembered_until_something_is_released() -> None:
    capacity, cache = make_capacity()
    big, small = make_request(0, num_prompt_tokens=50), make_request(1, num_prompt_tokens=5)
    assert capacity.fit(big, PrefixHit(), budget=99).num_lacking == 3
    assert capacity.still_lacking(big) == 3
    assert capacity.still_lacking(small) == 0
    cache.pool.allocate(2)
    assert capacity.still_lacking(big) == 5, "with what others have taken"
    capacity.release()
    assert capacity.still_lacking(big) == 0


def test_a_single_block_is_as_much_a_refusal() -> None:
    capacity, _ = make_capacity()
    request = make_request(0, num_prompt_tokens=41)
    assert capacity.fit(request, PrefixHit(), budget=99).num_lacking == 1
    assert capacity.still_lacking(request) == 1


def test_blocks_behind_a_window_are_released_too() -> None:
    capacity, cache = make_capacity()
    request = make_request(0, num_prompt_tokens=50)
    cache.num_left_behind = 4
    capacity.fit(request, PrefixHit(), budget=99)
    assert capacity.still_lacking(request) == 3
    cache.num_left_behind += 1
    assert capacity.still_lacking(request) == 0
