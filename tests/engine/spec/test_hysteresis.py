from __future__ import annotations

from engine.spec.hysteresis import Hysteresis


def give_up(hysteresis: Hysteresis) -> None:
    hysteresis.refuse()
    hysteresis.planned(has_drafts=False)


def num_steps_until_drafts(hysteresis: Hysteresis) -> int:
    count = 0
    while not hysteresis.allows_drafts():
        hysteresis.planned(has_drafts=False)
        count += 1
    hysteresis.planned(has_drafts=True)
    return count


def test_drafts_are_made_until_they_do_not_pay() -> None:
    hysteresis = Hysteresis()
    assert hysteresis.allows_drafts()
    margin = hysteresis.margin
    give_up(hysteresis)
    assert not hysteresis.allows_drafts()
    assert hysteresis.margin > margin


def test_steps_that_have_no_room_for_drafts_are_no_reason_to_give_up() -> None:
    hysteresis = Hysteresis()
    assert hysteresis.allows_drafts()
    hysteresis.planned(has_drafts=False)
    # Here they would not have paid before some requests were over.
    hysteresis.refuse()
    hysteresis.planned(has_drafts=True)
    assert hysteresis.is_drafting


def test_they_must_pay_in_several_steps_in_a_row() -> None:
    hysteresis = Hysteresis()
    hysteresis.drafted(100)
    give_up(hysteresis)
    for _ in range(20):
        assert not hysteresis.allows_drafts()
        hysteresis.planned(has_drafts=False)
        assert not hysteresis.is_tempted
        hysteresis.planned(has_drafts=False)  # Here they do not.
    assert num_steps_until_drafts(hysteresis) == 3


def test_who_gives_up_soon_thinks_twice_as_long_next_time() -> None:
    hysteresis, waited = Hysteresis(), []
    for _ in range(8):
        hysteresis.drafted(5)
        give_up(hysteresis)
        waited.append(num_steps_until_drafts(hysteresis))
    assert waited == [6, 12, 24, 48, 96, 96, 96, 96]
    hysteresis.drafted(40)
    give_up(hysteresis)
    assert num_steps_until_drafts(hysteresis) == 3
