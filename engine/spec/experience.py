"""What steps have taught: how often drafts are right, what steps take, and what probes may cost.

What is not drafted is not learned. So where drafts do not pay, some are checked all the same now
and then: as often as the time that this has cost stays below 0.5 % of the time without drafts.
Such probes that turn out to pay earn their successors' time, so that a change for the better is
found out soon, and one that never comes costs that 0.5 %.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.spec.acceptance import Acceptance
from engine.spec.costs import OUTLIER, LearnedCosts
from engine.spec.newcomers import Exposure, Newcomers
from engine.spec.probes import ProbeBudget
from engine.spec.remeasurement import Remeasurement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.spec.costs import StepCosts
    from engine.spec.planned_step import PlannedStep

HOLDS = 8
"""Steps without drafts that are learned from at once: one teaches little."""
# And steps with them, or others; the former once so many of their kind were seen.
_HOLDS_DRAFTING, _NUM_FAMILIAR = 4, 32
# So few of a kind that another is welcome, though it may not be typical.
_NUM_FEW = 4
# A probe counts as if it lost no more than so many steps: the first one may take far longer.
_MAX_LOSS = 4.0
# What the latest step that was awaited weighs against all before it.
_PATIENCE_SHARE = 0.02


@dataclass(slots=True)
class _Plain:
    """Steps without drafts, one like the other, of which nothing was learned yet."""

    batch: int = 0
    seconds: list[float] = field(default_factory=list)
    saving_s: float = 0.0


@dataclass(slots=True)
class _Drafted:
    """Steps with drafts, one like the other, of which nothing was learned yet."""

    steps: list[PlannedStep] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    outcomes: list[Sequence[tuple[str, int, int]]] = field(default_factory=list)

    def takes(self, step: PlannedStep) -> bool:
        if not self.steps:
            return True
        last = self.steps[-1]
        return (last.batch, last.length, last.num_drafts) == (
            step.batch,
            step.length,
            step.num_drafts,
        )


class Experience:
    def __init__(self, costs: StepCosts, *, by_request: bool = True) -> None:
        """by_request: what was right is remembered for each request, too."""
        self.costs = LearnedCosts(costs)
        self.acceptance = Acceptance(costs.lengths[-1], by_request=by_request)
        self.newcomers = Newcomers()
        self.remeasurement = Remeasurement()
        self.probes = ProbeBudget()
        self.patience_s = 0.0
        """What a step that was awaited gains, of late; below 0 if it loses."""
        self.version = 0
        """Another one whenever it is time to judge anew."""
        self.before: PlannedStep | None = None
        """The last step, if all it did was to decode."""
        self._exposure = Exposure()
        self.overlaps = False
        """Whether steps without drafts overlap as a rule."""
        self._num_learned = 0
        """Steps that were learned from since all was judged."""
        self._plain, self._drafted = _Plain(), _Drafted()

    def planned(self, step: PlannedStep) -> None:
        """To be followed by ``observe`` once it is over; others may be planned between the two."""
        before, self.before = self.before, step if step.only_decodes else None
        if before is not None and step.overlaps and not step.only_decodes:
            before.is_typical = False  # What the host did for the prompts is a part of its time.
        self.overlaps |= step.overlaps
        step.follows_others = before is None
        if before is not None:
            step.follows_probe = before.is_probe and not step.is_probe
            # What follows drafts need not be awaited any more: it is their merit.
            step.was_awaited |= before.was_awaited and step.num_drafts > 0
        step.is_typical = (
            step.only_decodes
            and (step.overlaps or step.num_drafts > 0 or not (self.overlaps or step.was_awaited))
            and before is not None
            and before.length == step.length
            and before.is_even == step.is_even
            and before.batch >= step.batch
        )
        if step.is_probe and not step.num_drafts:
            self.probes.pass_turn()

    # ---- one step -------------------------------------------------------------------------------

    def observe(
        self,
        step: PlannedStep,
        seconds: float,
        outcomes: Sequence[tuple[str, int, int]],
        *,
        is_drafting: bool = True,
    ) -> None:
        """A step is over: what it took, and for each request that had drafts how many, and how
        many of them were right. is_drafting: drafts are made now, as a rule."""
        if step.batch == 0:
            return
        step.is_typical &= not step.is_last
        if step.is_typical and not step.num_drafts and self.remeasurement.is_idle:
            # Most steps, where drafts do not pay: the host has better things to do.
            self.observe_rest(step.batch, [seconds], step.saving_s)
            return
        self._observe_plain()
        if step.is_typical and step.num_drafts and not step.is_probe:
            kind = step.batch, step.length, step.num_drafts
            if self.costs.num_seen(*kind) >= _NUM_FAMILIAR:
                self._put_together(step, seconds, outcomes)
                return
        self._observe_drafted()
        self._observe_one(step, seconds, outcomes, is_drafting=is_drafting)

    def _observe_one(
        self,
        step: PlannedStep,
        seconds: float,
        outcomes: Sequence[tuple[str, int, int]],
        *,
        is_drafting: bool,
    ) -> None:
        usual_s = seconds / self.costs.pace
        self._observe_newcomers(step, usual_s, outcomes, is_drafting=is_drafting)
        self.acceptance.observe(outcomes)
        kind = step.batch, step.length, step.num_drafts
        if step.is_typical:
            self.costs.observe(*kind, seconds)
        elif step.only_decodes and not step.is_last:
            is_welcome = self.costs.num_seen(*kind) < _NUM_FEW
            # Without what a network caught up with it is better than nothing.
            if is_welcome and step.num_drafts and step.follows_others:
                self.costs.observe(*kind, seconds - self._exposure.caught_up_s(step))
            elif (is_welcome or step.is_probe) and usual_s < self.costs.seconds(*kind):
                self.costs.observe(*kind, seconds)  # Others take longer, if anything.
        was_measured = self._count(step)
        is_measuring = not (self.remeasurement.is_idle or step.num_drafts)
        self._has_learned(1, much=was_measured or is_measuring or step.is_probe)
        if step.is_probe:
            self.probes.judge(*_hits(outcomes))
        self._save(step, usual_s, _num_tokens(step, outcomes))

    def _save(self, step: PlannedStep, seconds: float, num_tokens: int) -> None:
        """What a step says of probes and of waiting."""
        plain_s = self._plain_s(step.batch)
        gained_s = num_tokens / step.batch * plain_s - seconds
        if step.was_awaited and step.only_decodes:
            gained_s = max(gained_s, -plain_s)
            self._observe_patience(gained_s, plain_s)
        if step.is_probe:
            gained_s = max(gained_s, -_MAX_LOSS * plain_s)
        if step.is_probe or (step.was_awaited and self.patience_s < 0):
            self.probes.save(gained_s, plain_s)
        elif step.follows_probe:
            # There was nothing in flight that could have hidden the host's work.
            self.probes.save(-min(max(0.0, seconds - plain_s), plain_s), plain_s)
        elif step.length == 0 and step.is_typical:
            self.probes.rest(min(seconds, 2 * plain_s), plain_s)

    def _plain_s(self, batch: int) -> float:
        """Seconds of a step of this batch without drafts."""
        plain_s = self.costs.even(batch, 0)
        self.probes.begin(plain_s)
        return plain_s

    def _count(self, step: PlannedStep) -> bool:
        """As ``Remeasurement.count``; a prompt says nothing: of short answers each has one."""
        if not (step.only_decodes or step.num_drafts):
            return False
        num_known = self.costs.num_seen(step.batch, 0, 0)
        return self.remeasurement.count(
            has_drafts=step.num_drafts > 0,
            num_known=num_known,
            num_steps=step.num_like,
        )

    def _observe_patience(self, gained_s: float, plain_s: float, num_steps: int = 1) -> None:
        """Of steps that were awaited, what each of them gained."""
        share = 1 - (1 - _PATIENCE_SHARE) ** num_steps
        self.patience_s += share * (max(gained_s, -plain_s) - self.patience_s)

    def _observe_newcomers(
        self,
        step: PlannedStep,
        seconds: float,
        outcomes: Sequence[tuple[str, int, int]],
        *,
        is_drafting: bool,
    ) -> None:
        self.newcomers.come(step.num_new, drafting=is_drafting)
        num_tokens, saved_s = _num_tokens(step, outcomes), step.saving_s
        plain_s = self.costs.even(step.batch, 0)
        if step.num_drafts:
            usual_s = self.costs.seconds(step.batch, step.length, step.num_drafts)
            saved_s = num_tokens / step.batch * plain_s - usual_s
        self.newcomers.go_on(step.num_like * num_tokens, step.num_like * saved_s)
        if not step.only_decodes:
            if is_drafting:
                hidden_s = self.costs.table.seconds(step.batch, 0, 0) if self.overlaps else 0.0
                lost_s = self._exposure.lost_s(step, hidden_s) / self.costs.pace
                self.newcomers.lose(lost_s, plain_s)
        elif step.num_drafts and not step.is_probe:
            if step.follows_others:
                usual_s = self.costs.seconds(step.batch, step.length, step.num_drafts)
                self.newcomers.lose(max(0.0, seconds - usual_s), plain_s)
            else:
                self._exposure.observe(step)

    def _has_learned(self, num_steps: int, *, much: bool = False) -> None:
        """From so many steps; much: each of them may change what is to be done."""
        self._num_learned += num_steps
        if much or self._num_learned >= _HOLDS_DRAFTING:
            self._num_learned = 0
            self.version += 1

    # ---- steps that are one like the other ------------------------------------------------------

    def _put_together(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """What most steps teach, where drafts pay: once for several of them."""
        if not self._drafted.takes(step):
            self._observe_drafted()
        drafted = self._drafted
        drafted.steps.append(step)
        drafted.seconds.append(seconds)
        drafted.outcomes.append(outcomes)
        if len(drafted.steps) == HOLDS:
            self._observe_drafted()

    def _observe_drafted(self) -> None:
        """Learn from steps with drafts that were put together."""
        drafted, num_steps = self._drafted, len(self._drafted.steps)
        if num_steps == 0:
            return
        self._drafted = _Drafted()
        step = drafted.steps[-1]
        num_tokens = sum(map(_num_tokens, drafted.steps, drafted.outcomes))
        usual_s = self.costs.seconds(step.batch, step.length, step.num_drafts)
        plain_s = self.costs.even(step.batch, 0)
        saved_s = num_tokens / step.batch * plain_s - num_steps * usual_s
        num_like = sum(each.num_like for each in drafted.steps) / num_steps
        self.newcomers.go_on(num_like * num_tokens, num_like * saved_s)
        self._exposure.observe(step, num_steps)
        self.acceptance.observe([one for outcomes in drafted.outcomes for one in outcomes])
        seconds = _mean(drafted.seconds)
        self.costs.observe(step.batch, step.length, step.num_drafts, seconds, num_steps)
        for each in drafted.steps:
            self._count(each)
        self._has_learned(num_steps)
        plain_s = self._plain_s(step.batch)
        if step.was_awaited:
            plain_steps = num_tokens / (num_steps * step.batch)
            gained_s = plain_steps * plain_s - seconds / self.costs.pace
            self._observe_patience(gained_s, plain_s, num_steps)
            if self.patience_s < 0:
                self.probes.save(num_steps * gained_s, plain_s)

    def observe_rest(self, batch: int, seconds: Sequence[float], saving_s: float = 0.0) -> None:
        """Steps without drafts are over that nobody was asked for, or others like them. saving_s:
        what drafts could have saved."""
        self._observe_drafted()
        if self._plain.batch != batch:
            self._observe_plain()
            self._plain.batch = batch
        self._plain.seconds += seconds
        self._plain.saving_s += saving_s
        if len(self._plain.seconds) >= HOLDS:
            self._observe_plain()

    def pass_by(self, batch: int, num_steps: int) -> None:
        """So many steps without drafts are over that nobody timed."""
        if num_steps:
            plain_s = self._plain_s(batch)
            self.acceptance.rest(num_steps)
            self.probes.rest(num_steps * plain_s, plain_s)

    def _observe_plain(self) -> None:
        """Learn from steps without drafts that were put together."""
        plain, num_steps = self._plain, len(self._plain.seconds)
        self._plain = _Plain()
        if num_steps == 0:
            return
        self.acceptance.rest(num_steps)
        self.newcomers.go_on(num_steps * plain.batch, plain.saving_s)
        seconds = _mean(plain.seconds)
        self.costs.observe(plain.batch, 0, 0, seconds, num_steps)
        self._has_learned(num_steps)
        self.probes.rest(num_steps * seconds / self.costs.pace, self._plain_s(plain.batch))

    def drop(self, request_id: str) -> None:
        """The request is finished."""
        self._observe_drafted()  # It may have been among them.
        self.acceptance.drop(request_id)
        self.newcomers.end()


def _num_tokens(step: PlannedStep, outcomes: Sequence[tuple[str, int, int]]) -> int:
    return step.num_tokens or step.batch + sum(num_right for _, _, num_right in outcomes)


def _hits(outcomes: Sequence[tuple[str, int, int]]) -> tuple[int, int]:
    """Drafts that were right, and those that could have been."""
    hits = sum(num_right for _, _, num_right in outcomes)
    return hits, sum(min(num_right + 1, num_drafts) for _, num_drafts, num_right in outcomes)


def _mean(seconds: Sequence[float]) -> float:
    """Of a step that took far longer only so much counts: something else had the processor."""
    most = OUTLIER * sorted(seconds)[(len(seconds) - 1) // 2]
    return sum(min(each, most) for each in seconds) / len(seconds)
