"""Streaks of proposers that draft from texts, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.spec import surprises
from engine.spec.adaptive import AdaptiveLength
from engine.spec.base import TextProposer
from engine.spec.costs import StepCosts
from tests.engine.spec.simulation import H200, padded
from tests.engine.spec.test_speculator import Ideas, TimedRunner, run, start


def deciding(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches for which a number of drafts is decided."""
    adaptive = core._speculator._adaptive
    assert isinstance(adaptive, AdaptiveLength)
    decided: list[int] = []
    lengths = adaptive.lengths

    def spy(found: Mapping[Request, int], batch: int) -> dict[Request, int]:
        decided.append(batch)
        return lengths(found, batch)

    monkeypatch.setattr(adaptive, "lengths", spy)
    return decided


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("overlap", [True, False])
def test_where_drafts_pay_few_steps_are_decided_on(
    batch: int, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = TimedRunner(padded(H200), 0.9)
    core, _ = start(runner, batch, overlap=overlap, proposer=Ideas(1.0))
    run(core, runner, 100)
    decided, before = deciding(core, monkeypatch), core.stats()
    run(core, runner, 320)
    assert 4 * 9 <= len(decided) <= 4 * 11
    after = core.stats()
    assert after.spec_decode_num_drafts - before.spec_decode_num_drafts == 320 * batch
    assert after.spec_decode_num_draft_tokens - before.spec_decode_num_draft_tokens == (
        3 * 320 * batch
    )
    core.check_integrity()


def test_one_request_after_the_other_does_not_end_a_streak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are no others that a new prompt could delay."""
    runner = TimedRunner(padded(H200), 0.95)
    core, _ = start(runner, 1, overlap=True, proposer=Ideas(1.0))
    run(core, runner, 100)
    core.abort(["0"])
    decided, num_steps = deciding(core, monkeypatch), core.stats().num_steps
    for number in range(60):
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        core.add_request(
            GenerateRequest(request_id=f"n{number}", prompt_token_ids=[1, 2], params=params)
        )
        while core.has_unfinished:
            run(core, runner, 1)
    num_steps = core.stats().num_steps - num_steps
    assert 4 <= len(decided) < 0.2 * num_steps
    core.check_integrity()


def test_a_streak_ends_when_nothing_is_right_any_more() -> None:
    runner = TimedRunner(padded(H200), 0.95)
    core, _ = start(runner, 1, overlap=True, proposer=Ideas(1.0))
    run(core, runner, 100)
    while core._speculator._streak.num_steps != 26:
        run(core, runner, 1)
    runner._rate = 0.0
    num_drafts = core.stats().spec_decode_num_drafts
    run(core, runner, 8)
    assert core._speculator._streak.num_steps == 0
    run(core, runner, 200)
    given_up = core.stats().spec_decode_num_drafts
    assert given_up - num_drafts < 100
    run(core, runner, 200)
    assert core.stats().spec_decode_num_drafts - given_up < 4


def test_what_was_right_in_a_streak_is_learned_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TimedRunner(padded(H200), 0.9)
    core, _ = start(runner, 2, overlap=True, proposer=Ideas(1.0))
    run(core, runner, 100)
    while core._speculator._streak.num_steps != 28:
        run(core, runner, 1)
    learned: list[tuple[str, int, int]] = []
    adaptive = core._speculator._adaptive
    monkeypatch.setattr(adaptive, "observe_streak", learned.extend)
    before = core.stats()
    while core._speculator._streak.num_steps > 20:
        run(core, runner, 1)
    assert not learned
    core.abort(["1"])
    while not learned:
        run(core, runner, 1)
    after = core.stats()
    # A batch of another size ends a streak, or goes on with it; the first step was looked at.
    assert {name for name, *_ in learned} == {"0", ""}
    num_right = after.spec_decode_num_accepted_tokens - before.spec_decode_num_accepted_tokens
    assert abs(sum(right for *_, right in learned) - num_right) <= 4 * 3


def test_what_only_some_requests_find_is_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are as long as for those that have the most."""
    runner = TimedRunner(padded(H200), 0.9)
    core, _ = start(runner, 4, overlap=True, proposer=Ideas(0.25))
    run(core, runner, 200)
    decided, before = deciding(core, monkeypatch), core.stats().spec_decode_num_drafts
    run(core, runner, 64)
    drafted = core.stats().spec_decode_num_drafts - before
    assert drafted == 2 * 64, "two requests of four"
    assert len(decided) < 64


class Late(TextProposer):
    """Finds nothing for some tokens after every sixteen."""

    def __init__(self, gap: int) -> None:
        self._gap = gap
        self._begin = 16

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        while request.num_tokens >= self._begin + self._gap:
            self._begin += 16
        return [1] * min(max_tokens, self._begin - 1 - request.num_tokens)

    def drop(self, request: Request) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("gap", [1, 9])
def test_drafts_that_follow_unforeseen_are_waited_for_where_that_is_usual(
    gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def num_plain(*, waits: bool) -> int:
        """Steps without drafts of 4,000 tokens."""
        runner = TimedRunner(padded(H200), 0.999)
        core, _ = start(runner, 1, overlap=True, proposer=Late(gap))
        if not waits:
            monkeypatch.setattr(surprises, "_LIKELY", 1.0)
        num_tokens = 0
        while num_tokens < 4000:
            num_tokens += sum(len(output.new_token_ids) for output in core.step())
            runner.now += 0.0001
        stats = core.stats()
        return stats.num_steps - stats.spec_decode_num_drafts

    waiting, not_waiting = num_plain(waits=True), num_plain(waits=False)
    if gap == 1:
        assert waiting < 0.7 * not_waiting
    else:
        assert abs(waiting - not_waiting) < 0.05 * not_waiting, "most waits would be in vain"


class InTurns(TextProposer):
    """Copies in some phases; in the others finds something all the same, or nothing."""

    def __init__(self, runner: TimedRunner, *, finds: bool) -> None:
        self._runner = runner
        self._finds = finds

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        return [1] * max_tokens if self._runner._rate > 0.5 or self._finds else []

    def drop(self, request: Request) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("finds", [True, False])
@pytest.mark.parametrize("speed", [1, 20])
@pytest.mark.parametrize("phase", [50, 200, 1000])
def test_texts_that_copy_now_and_then_are_no_slower(finds: bool, speed: float, phase: int) -> None:
    """phase: the tokens until drafts are right, or no longer right."""
    table = [[seconds / speed for seconds in row] for row in H200.taken_s]
    costs = padded(StepCosts(H200.batches, H200.lengths, table))

    def taken(rates: tuple[float, float], *, drafts: bool) -> float:
        """Seconds for a number of tokens."""
        runner = TimedRunner(costs, rates[0])
        proposer = InTurns(runner, finds=finds) if drafts else Ideas(0.0)
        core, _ = start(runner, 1, overlap=True, proposer=proposer)
        num_tokens = 0
        while num_tokens < 4000:
            runner._rate = rates[num_tokens // phase % 2]
            num_tokens += sum(len(output.new_token_ids) for output in core.step())
            runner.now += 0.0001
        return runner.now

    plain = taken((0.0, 0.0), drafts=False)
    assert taken((0.05, 0.05), drafts=True) < 1.02 * plain
    in_turns = taken((0.9, 0.05), drafts=True)
    if finds:
        assert in_turns < 0.98 * plain
    else:
        assert in_turns < 0.75 * plain
