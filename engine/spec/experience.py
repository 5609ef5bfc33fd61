"""What was learned from past steps: acceptance rates, the times of steps, the budget of probes.

Without drafts, nothing is learned about drafts. So where drafts do not pay, some are verified all
the same now and then, within 0.5 % of the time without drafts. Probes that turn out to pay add to
that budget: a change for the better is found soon, and one that never comes costs 0.5 %.
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

STEPS_PER_UPDATE = 8
"""Steps without drafts from which the estimates are updated at once: a single one adds little, and
an update takes host time."""
# Likewise for other steps.
_DRAFTED_STEPS_PER_UPDATE = 4
# Steps with drafts are put together only once this many of their kind were seen.
_NUM_FAMILIAR = 32
# With fewer steps of a kind than this, even one that is not typical is better than nothing.
_NUM_FEW = 4
# The most steps that a probe counts as having lost: the first probe may take far longer.
_MAX_LOSS = 4.0
# Weight of the latest step that was waited for in the mean of what such steps gain.
_PATIENCE_SHARE = 0.02


@dataclass(slots=True)
class _Plain:
    """Steps of one batch size without drafts, still to be learned from."""

    batch: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Drafted:
    """Steps with drafts of one kind, still to be learned from."""

    steps: list[PlannedStep] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    outcomes: list[Sequence[tuple[str, int, int]]] = field(default_factory=list)
    """Of each step, as for ``Experience.observe``."""

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
    """Feeds what steps took, and which drafts were accepted, to the estimates."""

    def __init__(self, costs: StepCosts, *, by_request: bool = True) -> None:
        """costs: as measured at start-up. by_request: acceptance rates are also kept for each
        request."""
        self.costs = LearnedCosts(costs)
        self.acceptance = Acceptance(costs.lengths[-1], by_request=by_request)
        self.newcomers = Newcomers()
        self.remeasurement = Remeasurement()
        self.probes = ProbeBudget()
        self.patience_s = 0.0
        """Seconds that waiting for a step in order to draft has gained lately; negative if it has
        lost time."""
        self.version = 0
        """Changes whenever decisions should be computed anew."""
        self.before: PlannedStep | None = None
        """The last planned step, if it only decoded."""
        self._exposure = Exposure()
        self.overlaps = False
        """Whether steps without drafts usually overlap."""
        self._num_learned = 0
        """Steps that were learned from since ``version`` changed."""
        self._plain, self._drafted = _Plain(), _Drafted()

    def planned(self, step: PlannedStep) -> None:
        """A step was planned; fills in what it has to do with the step before. ``observe`` follows
        once it is over; other steps may be planned in between."""
        before, self.before = self.before, step if step.only_decodes else None
        if step.follows_others:
            before = None
        if before is not None and step.overlaps and not step.only_decodes:
            before.is_typical = False  # Its time includes the host's work for this step's prompts.
        self.overlaps |= step.overlaps
        step.follows_others = before is None
        if before is not None:
            step.follows_probe = before.is_probe and not step.is_probe
            # In a run of steps with drafts only the first is waited for, for the sake of all.
            step.was_awaited |= before.was_awaited and step.num_drafts > 0
        step.is_typical = (
            step.only_decodes
            and (step.overlaps or step.num_drafts > 0 or not (self.overlaps or step.was_awaited))
            and before is not None
            and before.length == step.length
            and before.is_uniform == step.is_uniform
            and before.batch >= step.batch
        )
        if step.is_probe and not step.num_drafts:
            self.probes.pass_turn()

    # ---- single steps ---------------------------------------------------------------------------

    def observe(
        self,
        step: PlannedStep,
        seconds: float,
        outcomes: Sequence[tuple[str, int, int]],
        *,
        is_drafting: bool = True,
    ) -> None:
        """A step is over. outcomes: for each request with drafts (request id, drafts, accepted
        drafts). is_drafting: whether the hysteresis currently drafts."""
        if step.batch == 0:
            return
        step.is_typical &= not step.is_last
        if step.is_typical and not step.num_drafts and self.remeasurement.is_idle:
            # Where drafts do not pay most steps are like this: spend little host time on them.
            self.observe_rest(step.batch, [seconds])
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
            # A step after a prompt, in which the network caught up with that: subtract the time.
            if is_welcome and step.num_drafts and step.follows_others:
                self.costs.observe(*kind, seconds - self._exposure.caught_up_s(step))
            elif (is_welcome or step.is_probe) and usual_s < self.costs.seconds(*kind):
                self.costs.observe(*kind, seconds)  # An untypical step is no faster than usual.
        was_measured = self._count(step)
        is_measuring = not (self.remeasurement.is_idle or step.num_drafts)
        self._has_learned(1, much=was_measured or is_measuring or step.is_probe)
        if step.is_probe:
            self.probes.judge(*_hits(outcomes))
        self._save(step, usual_s, _num_tokens(step, outcomes))

    def _save(self, step: PlannedStep, seconds: float, num_tokens: int) -> None:
        """Add what a step gained or lost to the budget of probes, and to ``patience_s``."""
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
            # The probe kept the host's work for this step from overlapping, so it pays for that.
            self.probes.save(-min(max(0.0, seconds - plain_s), plain_s), plain_s)
        elif step.length == 0 and step.is_typical:
            self.probes.rest(min(seconds, 2 * plain_s), plain_s)

    def _plain_s(self, batch: int) -> float:
        """Seconds of a step of such a batch without drafts."""
        plain_s = self.costs.uniform(batch, 0)
        self.probes.begin(plain_s)
        return plain_s

    def _count(self, step: PlannedStep) -> bool:
        """As ``Remeasurement.count``. Steps with prompts and without drafts do not count (with
        short answers many steps have a prompt), nor do probes, around which steps without drafts
        are measured anyway."""
        if step.is_probe or not (step.only_decodes or step.num_drafts):
            return False
        num_known = self.costs.num_seen(step.batch, 0, 0)
        return self.remeasurement.count(
            has_drafts=step.num_drafts > 0,
            num_known=num_known,
            num_steps=step.num_like,
        )

    def _observe_patience(self, gained_s: float, plain_s: float, num_steps: int = 1) -> None:
        """Update ``patience_s`` by steps that were waited for. gained_s: by each of them."""
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
        self.newcomers.come(step.num_new, step.batch, drafting=is_drafting)
        self._go_on(step, outcomes)
        plain_s = self.costs.uniform(step.batch, 0)
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

    def _go_on(self, step: PlannedStep, outcomes: Sequence[tuple[str, int, int]]) -> None:
        """Count the tokens of a step, and of those it stands for."""
        num_tokens = _num_tokens(step, outcomes)
        for size, num_requests in step.like.items():
            self.newcomers.go_on(size, num_requests * num_tokens / step.batch)
        self.newcomers.go_on(step.batch, num_tokens)

    def _has_learned(self, num_steps: int, *, much: bool = False) -> None:
        """Count steps that were learned from. much: each of them alone may change a decision."""
        self._num_learned += num_steps
        if much or self._num_learned >= _DRAFTED_STEPS_PER_UPDATE:
            self._num_learned = 0
            self.version += 1

    # ---- several steps of a kind ----------------------------------------------------------------

    def observe_streak(self, outcomes: Sequence[tuple[str, int, int]]) -> None:
        """Steps are over of which only the outcomes are known."""
        self._observe_drafted()
        self.acceptance.observe(outcomes)
        self._has_learned(1, much=True)

    def _put_together(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """Collect steps with drafts of one kind, which are most steps where drafts pay, to learn
        from several at once."""
        if not self._drafted.takes(step):
            self._observe_drafted()
        drafted = self._drafted
        drafted.steps.append(step)
        drafted.seconds.append(seconds)
        drafted.outcomes.append(outcomes)
        if len(drafted.steps) == STEPS_PER_UPDATE:
            self._observe_drafted()

    def _observe_drafted(self) -> None:
        """Learn from the collected steps with drafts."""
        drafted, num_steps = self._drafted, len(self._drafted.steps)
        if num_steps == 0:
            return
        self._drafted = _Drafted()
        step = drafted.steps[-1]
        num_tokens = sum(map(_num_tokens, drafted.steps, drafted.outcomes))
        for each, outcomes in zip(drafted.steps, drafted.outcomes, strict=True):
            self._go_on(each, outcomes)
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

    def observe_rest(self, batch: int, seconds: Sequence[float]) -> None:
        """Typical steps of a batch without drafts are over. seconds: of each."""
        self._observe_drafted()
        if self._plain.batch != batch:
            self._observe_plain()
            self._plain.batch = batch
        self._plain.seconds += seconds
        if len(self._plain.seconds) >= STEPS_PER_UPDATE:
            self._observe_plain()

    def pass_by(self, batch: int, num_steps: int) -> None:
        """``num_steps`` steps without drafts are over that were not timed."""
        if num_steps:
            plain_s = self._plain_s(batch)
            self.acceptance.rest(num_steps)
            self.probes.rest(num_steps * plain_s, plain_s)

    def _observe_plain(self) -> None:
        """Learn from the collected steps without drafts."""
        plain, num_steps = self._plain, len(self._plain.seconds)
        self._plain = _Plain()
        if num_steps == 0:
            return
        self.acceptance.rest(num_steps)
        self.newcomers.go_on(plain.batch, num_steps * plain.batch)
        seconds = _mean(plain.seconds)
        self.costs.observe(plain.batch, 0, 0, seconds, num_steps)
        self._has_learned(num_steps)
        self.probes.rest(num_steps * seconds / self.costs.pace, self._plain_s(plain.batch))

    def drop(self, request_id: str) -> None:
        """The request is finished."""
        self._observe_drafted()  # The collected steps may have drafts of it.
        self.acceptance.drop(request_id)
        self.newcomers.end()


def _num_tokens(step: PlannedStep, outcomes: Sequence[tuple[str, int, int]]) -> int:
    """Tokens that a step generated."""
    return step.num_tokens or step.batch + sum(num_right for _, _, num_right in outcomes)


def _hits(outcomes: Sequence[tuple[str, int, int]]) -> tuple[int, int]:
    """(accepted drafts, drafts that were judged): those after a rejected draft are not judged."""
    hits = sum(num_right for _, _, num_right in outcomes)
    return hits, sum(min(num_right + 1, num_drafts) for _, num_drafts, num_right in outcomes)


def _mean(seconds: Sequence[float]) -> float:
    """The mean, in which a step that took far longer than the median counts as ``OUTLIER`` times
    the median: another process had the processor."""
    most = OUTLIER * sorted(seconds)[(len(seconds) - 1) // 2]
    return sum(min(each, most) for each in seconds) / len(seconds)
