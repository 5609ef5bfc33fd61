from __future__ import annotations

from typing import Any

from engine.cache.manager import CacheManager, PrefixHit
from engine.scheduler.room import Room
from tests.engine.scheduler.harness import config
from tests.engine.scheduler.making import make_request


def make_room(num_blocks: int = 10, **options: Any) -> tuple[Room, CacheManager]:
    options = {"block_size": 4, "watermark": 0.0, "forecast_admission": False} | options
    cache = CacheManager(num_blocks, 4)
    room = Room(config(**options), cache)
    room.begin_step([])
    return room, cache


def test_the_whole_prompt_is_measured_or_only_its_first_chunk() -> None:
    request = make_request(0, num_prompt_tokens=30)
    room, _ = make_room()
    fit = room.fit(request, PrefixHit(), budget=8)
    assert (fit.num_tokens, fit.num_slots, fit.num_lacking) == (8, 30, -2)
    room, _ = make_room(scheduler_reserve_full_isl=False)
    fit = room.fit(request, PrefixHit(), budget=8)
    assert (fit.num_tokens, fit.num_slots, fit.num_lacking) == (8, 8, -8)


def test_the_threshold_cuts_the_first_chunk() -> None:
    room, _ = make_room(long_prefill_token_threshold=5)
    assert room.fit(make_request(0, num_prompt_tokens=30), PrefixHit(), budget=8).num_tokens == 5


def test_the_watermark_counts_only_beside_others() -> None:
    request = make_request(0, num_prompt_tokens=38)
    room, _ = make_room(watermark=0.2)
    assert room.fit(request, PrefixHit(), budget=99).num_lacking == 0
    room.begin_step([make_request(1, running=True)])
    assert room.fit(request, PrefixHit(), budget=99).num_lacking == 2


def test_the_forecast_counts_only_beside_others() -> None:
    request = make_request(0, num_prompt_tokens=10, max_tokens=100)
    room, _ = make_room(forecast_admission=True)
    assert room.fit(request, PrefixHit(), budget=99).num_lacking < 0
    room.begin_step([make_request(1, running=True, max_tokens=100)])
    assert room.fit(request, PrefixHit(), budget=99).num_lacking > 20


def test_every_step_has_a_forecast_of_its_own() -> None:
    request = make_request(0, num_prompt_tokens=10, max_tokens=2)
    room, _ = make_room(forecast_admission=True)
    room.begin_step([make_request(1, running=True, max_tokens=100)])
    assert room.fit(request, PrefixHit(), budget=99).num_lacking > 0
    room.begin_step([make_request(1, running=True, max_tokens=2)])
    assert room.fit(request, PrefixHit(), budget=99).num_lacking <= 0


def test_a_copy_is_given_up_when_it_would_not_fit() -> None:
    room, cache = make_room(num_blocks=3)
    (source,) = cache.pool.allocate(1)
    tokens = make_request(0, num_prompt_tokens=4).token_ids
    table = make_request(0).block_table
    table.block_ids = [source]
    cache.publish(table, tokens, 4)
    cache.release(table, tokens)
    request = make_request(1, num_prompt_tokens=11)
    request.token_ids[3] = 9
    hit = cache.lookup(request.block_table, request.token_ids)
    assert hit.num_copied == 3
    fit = room.fit(request, hit, budget=99)
    assert fit.hit.num_copied == 0
    assert fit.num_lacking == 0


def test_a_refusal_is_remembered_until_something_is_released() -> None:
    room, cache = make_room()
    big, small = make_request(0, num_prompt_tokens=50), make_request(1, num_prompt_tokens=5)
    assert room.fit(big, PrefixHit(), budget=99).num_lacking == 3
    assert room.lacking(big) == 3
    assert room.lacking(small) == 0
    cache.pool.allocate(2)
    assert room.lacking(big) == 5, "with what others have taken"
    room.release()
    assert room.lacking(big) == 0
