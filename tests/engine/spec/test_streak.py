from __future__ import annotations

from engine.spec.streak import Streak


def passes(
    streak: Streak, batch: int, *, is_usual: bool, has_drafts: bool, has_newcomers: bool = False
) -> bool:
    return streak.passes(
        batch, is_usual=is_usual, has_drafts=has_drafts, has_newcomers=has_newcomers
    )


def begun(length: int = 3, batch: int = 6) -> Streak:
    streak = Streak()
    for _ in range(4):
        assert not streak.may_begin
        assert streak.looks(has_drafts=True) == (1, {})
    assert streak.may_begin
    streak.begin(length, batch)
    return streak


def test_between_two_some_steps_are_looked_at_which_stand_for_all() -> None:
    streak, looked_at = begun(), []
    for _ in range(320):
        if streak.num_steps:
            passes(streak, 5, is_usual=True, has_drafts=True)
            continue
        looked_at.append(streak.looks(has_drafts=True)[0])
        if streak.may_begin:
            streak.begin(3, 6)
    assert looked_at == [29, 1, 1, 1] * 10
    assert not streak.may_begin


def test_steps_without_drafts_neither_count_nor_stand_for_others() -> None:
    streak = Streak()
    for _ in range(10):
        assert streak.looks(has_drafts=False) == (1, {})
    assert not streak.may_begin
    streak = begun()
    while streak.num_steps:
        assert passes(streak, 5, is_usual=False, has_drafts=streak.num_steps > 20)
    assert streak.looks(has_drafts=False) == (1, {})
    assert streak.looks(has_drafts=True) == (1 + 8, {8: 40})


def test_what_follows_a_prompt_of_a_streak_is_not_looked_at_either() -> None:
    """It takes longer because of that prompt, which was not counted."""
    streak = begun()
    for _ in range(28):
        assert streak.num_steps
        assert passes(streak, 5, is_usual=False, has_drafts=True)
    assert not streak.num_steps
    assert streak.follows_others
    assert not passes(streak, 5, is_usual=False, has_drafts=True), "another prompt"
    assert passes(streak, 5, is_usual=True, has_drafts=True)
    assert not streak.follows_others
    assert streak.looks(has_drafts=True) == (1 + 29, {8: 145})
    streak.begin(3, 5)
    while streak.num_steps:
        passes(streak, 5, is_usual=False, has_drafts=True)
    assert streak.looks(has_drafts=True) == (1 + 28, {8: 140})
    assert not streak.follows_others, "that one was looked at"


def test_a_batch_of_another_size_may_have_other_drafts_or_none() -> None:
    streak = begun(length=3, batch=6)
    assert (streak.least, streak.most, streak.length, streak.tokens) == (5, 8, 3, 4)
    passes(streak, 5, is_usual=True, has_drafts=True)
    left = streak.num_steps
    streak.go_on(2, 1)
    assert (streak.least, streak.most, streak.length, streak.tokens) == (1, 1, 2, 3)
    assert streak.num_steps == left
    assert passes(streak, 1, is_usual=False, has_drafts=False)
    streak.go_on(0, 40)
    assert streak.num_steps == 0
    assert passes(streak, 40, is_usual=True, has_drafts=True), "that prompt was not counted"


def test_what_newcomers_cost_is_seen_of_some() -> None:
    streak, seen = begun(), []
    for number in range(12):
        if not streak.num_steps:
            streak.begin(3, 5)
        if not passes(streak, 5, is_usual=False, has_drafts=True, has_newcomers=True):
            seen.append(number)
            assert not streak.num_steps, "what follows is looked at, too"
    assert seen == [3, 7, 11]


def test_without_a_streak_all_is_looked_at() -> None:
    streak = Streak()
    assert (streak.num_steps, streak.follows_others, streak.may_begin) == (0, False, False)
    assert not passes(streak, 5, is_usual=False, has_drafts=True)


def test_a_streak_ends_where_nothing_is_right_for_a_while() -> None:
    streak = begun()
    for _ in range(2):
        for _ in range(5):
            streak.judge(gained=False)
        assert streak.num_steps == 28
        streak.judge(gained=True)
    for _ in range(5):
        streak.judge(gained=False)
    streak.begin(3, 6)
    for _ in range(5):
        streak.judge(gained=False)
    assert streak.num_steps == 28, "the next one is not to blame"
    streak.judge(gained=False)
    assert streak.num_steps == 0
