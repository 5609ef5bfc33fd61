"""Tokens are counted once, in the file that outlives the process too."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from gateway.generation.grants import Grants
from gateway.generation.meter import Meter
from tenants.limits import Price
from tenants.progress import Progress, read
from tests.tenants.samples import make_event


def test_it_asks_about_the_prompt_until_that_is_known() -> None:
    asked: list[int] = []

    def look(num_tokens: int) -> tuple[int, bool]:
        asked.append(num_tokens)
        return 4, len(asked) < 2

    meter = Meter(None, None, look)
    for num_tokens in (0, 3, 1):
        meter.count(num_tokens)
    assert asked == [0, 3]
    assert meter.generated() == meter.num_tokens == 4
    meter.end()


def test_grants_are_dealt_when_they_run_out_though_it_looks_at_every_token() -> None:
    """Several answers are looked at to their end; dealing grants looks at each of them."""
    dealt_at: list[int] = []

    class Plenty:
        slack = 10.0

        def advance(self) -> None:
            dealt_at.append(meter.num_tokens)

    meter = Meter(None, cast("Grants", Plenty()), lambda _: (0, True))
    for _ in range(25):
        meter.count(1)
    assert dealt_at == [1, 11, 21]


def test_what_it_counted_is_found_after_the_process_died(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    running = progress.begin(make_event(prompt_tokens=10, cached_tokens=0), Price())
    meter = Meter(running, None, lambda _: (6, False))
    for num_tokens in (1, 2, 300):
        meter.count(num_tokens)
    with progress.path.open("rb") as file:
        (left,) = read(file)
    assert (left.prompt_tokens, left.cached_tokens, left.completion_tokens) == (10, 6, 303)
    meter.end()
    with progress.path.open("rb") as file:
        assert not read(file)
    progress.close()
