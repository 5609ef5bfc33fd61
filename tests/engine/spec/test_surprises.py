from __future__ import annotations

from engine.spec.surprises import Surprises


def test_they_are_likely_where_most_of_the_last_times_were_some() -> None:
    surprises = Surprises()
    assert not surprises.are_likely
    for _ in range(6):
        surprises.begin()
        surprises.end(found=True)
    assert surprises.are_likely
    for _ in range(3):
        surprises.begin()
        surprises.end(found=False)
    assert not surprises.are_likely


def test_what_was_foreseen_is_none() -> None:
    surprises = Surprises()
    for _ in range(20):
        surprises.end(found=True)
    assert not surprises.are_likely
    surprises.begin()
    for _ in range(20):
        surprises.end(found=True)
    assert not surprises.are_likely
