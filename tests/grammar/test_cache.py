from __future__ import annotations

import threading

from grammar.cache import ByteLRU


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_least_recently_used_goes_first() -> None:
    cache: ByteLRU[str, int] = ByteLRU(100)
    cache.put("a", 1, 40)
    cache.put("b", 2, 40)
    assert cache.get("a") == 1
    cache.put("c", 3, 40)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    assert cache.num_bytes == 80
    assert len(cache) == 2


def test_one_large_value_pushes_out_several() -> None:
    cache: ByteLRU[int, int] = ByteLRU(100)
    for key in range(10):
        cache.put(key, key, 10)
    cache.put(99, 99, 95)
    assert len(cache) == 1
    assert cache.num_bytes == 95


def test_a_value_over_the_limit_is_not_kept_and_pushes_out_nothing_else() -> None:
    cache: ByteLRU[str, int] = ByteLRU(100)
    cache.put("a", 1, 60)
    cache.put("huge", 2, 101)
    assert cache.get("huge") is None
    assert cache.get("a") == 1


def test_what_fits_exactly_is_kept() -> None:
    cache: ByteLRU[str, int] = ByteLRU(100)
    cache.put("a", 1, 100)
    assert cache.get("a") == 1
    cache.put("b", 2, 60)
    cache.put("c", 3, 40)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, 2, 3)


def test_replacing_counts_once() -> None:
    cache: ByteLRU[str, int] = ByteLRU(100)
    cache.put("a", 1, 60)
    cache.put("a", 2, 30)
    assert cache.get("a") == 2
    assert cache.num_bytes == 30


def test_entries_expire() -> None:
    clock = Clock()
    cache: ByteLRU[str, int] = ByteLRU(100, clock=clock)
    cache.put("a", 1, 10, ttl_s=60)
    cache.put("b", 2, 10)
    clock.now = 59.9
    assert cache.get("a") == 1
    clock.now = 60.0
    assert cache.get("a") is None
    assert cache.get("b") == 2
    assert cache.num_bytes == 10


def test_bytes_add_up_under_threads() -> None:
    cache: ByteLRU[int, int] = ByteLRU(500)

    def work(seed: int) -> None:
        for i in range(500):
            key = (i * 7 + seed) % 40
            cache.put(key, i, key + 1)
            cache.get(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.num_bytes <= 500
    assert cache.num_bytes == sum(key + 1 for key in range(40) if cache.get(key) is not None)
