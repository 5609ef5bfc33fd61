"""Where the core gets drafts from: tokens that grammars force, and the configured proposer.

For each step the core calls, in this order::

    rests              whether the step runs without speculation; if so, ``planned`` is next
    foresees_drafts    with a step in flight: whether to wait for its tokens, to draft after them
    propose            draft
    planned            once the step is planned
    collected          when its result is there
    learn              while the device is busy with the next step

``AdaptiveLength`` decides how many drafts pay. Its module says what probes, rests and streaks are:
read that first."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from engine.spec.adaptive import AdaptiveLength
from engine.spec.config import NETWORK_METHODS
from engine.spec.fixed import FixedLength
from engine.spec.network import NetworkProposer
from engine.spec.ngram import NgramProposer
from engine.spec.planned_step import PlannedStep
from engine.spec.rest import Rest
from engine.spec.streak import Streak
from engine.spec.suffix import SuffixProposer
from engine.spec.surprises import Surprises

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Sequence
    from typing import Protocol

    from engine.request import Request
    from engine.scheduler.plan import Chunk, Runner, StepPlan, StepResult
    from engine.spec.base import Proposer
    from engine.spec.config import SpeculativeConfig
    from engine.spec.fixed import DraftLength

    class Grammars(Protocol):
        """What ``engine.constraints.Constraints`` contributes."""

        def forced_tokens(self, request: Request) -> list[int]: ...

        def legal_prefix(self, request: Request, token_ids: list[int]) -> list[int]: ...


MAX_FORCED = 7
"""The most tokens forced by a grammar that are drafted for a request without
``speculative_config``: with the token before they are 8, the most queries for the decode kernels of
attention."""

MAX_FORCED_BATCH = 4
"""The largest batch for which that is done: its steps are bound by memory bandwidth, so that
verifying a few more tokens costs little."""

_MAX_PROMPTLESS = 64
"""Steps of a rest in which a probe that is due waits for a prompt."""


class LookedAt(NamedTuple):
    """A step in flight that is learned from by itself."""

    step: PlannedStep
    plan: StepPlan
    forced: set[str]
    """Ids of the requests whose drafts a grammar forced: their acceptance says nothing."""


class OfRest(NamedTuple):
    """A step in flight of a rest, which may be timed."""

    batch: int
    """As ``Rest.plan`` returned it."""


class OfTextStreak(NamedTuple):
    """A step in flight of a streak of texts: only which of its drafts are right is noted."""

    chunks: list[Chunk]


Noted = LookedAt | OfRest | OfTextStreak
"""What is noted of a step in flight, to learn from it when it is over."""


class Speculator:
    """Sets the ``draft_token_ids`` of running requests. This never changes their output."""

    def __init__(
        self,
        config: SpeculativeConfig | None,
        grammars: Grammars,
        runner: Runner,
        proposer: Proposer | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        drafts_forced: bool = False,
    ) -> None:
        """proposer: used in place of the one that ``config`` names. drafts_forced: draft the tokens
        that grammars force even without a config."""
        self._grammars = grammars
        self._proposer = proposer
        self._clock = clock
        self._began_s = self._collected_s = 0.0
        self._outcomes: list[tuple[str, int, int]] = []
        """Of the steps of streaks of texts, as for ``DraftLength.observe``: to be learned from."""
        self._collected: deque[tuple[LookedAt, float, StepResult]] = deque()
        """Steps that are over, with the seconds of each, to be learned from."""
        self._drafting_s = 0.0
        """Seconds that it took to make the drafts of the step that is being planned."""
        self._is_probe = self._waited = False
        """Of the step that is being planned: as ``PlannedStep.is_probe`` and ``was_awaited``."""
        self._num_ended = 0
        """Requests that ended, of which only their number matters, not learned from yet."""
        self._num_probes = 0
        """Probes of a network that were not learned from yet. Until then no new probe begins, since
        its costs are not known."""
        self._paid = self._all_paid = False
        """Whether the last drafts of a free proposer were worth verifying; and whether all were."""
        self._forced: set[str] = set()
        """Ids of the requests whose present drafts a grammar forced."""
        self._drafted: list[Request] = []
        """The requests that have drafts."""
        self.keeps_features = True
        """Whether the next step keeps features for the draft network: only if it has drafts, or the
        step after it will."""
        self._rest, self._streak, self._surprises = Rest(), Streak(), Surprises()
        self._max_tokens = 0
        self._max_forced = MAX_FORCED if drafts_forced else 0
        if config is not None:
            self._proposer = proposer or create_proposer(config, runner)
            self._max_tokens = self._max_forced = config.num_tokens
        self._adaptive: DraftLength = FixedLength()
        if runner.step_costs is not None:
            # A network drafts the same number of tokens for each request of a batch.
            by_request = self._proposer is not None and self._proposer.is_free
            self._adaptive = AdaptiveLength(runner.step_costs, by_request=by_request)

    def rests(self, batch: int, *, goes_on: bool) -> bool:
        """The planning of a step of ``batch`` requests begins. Returns whether it belongs to a
        rest: then it runs as if there were no speculation.

        goes_on: the engine was not idle before, so the step's time counts from the last result:
        without overlap, the host's work is a part of what drafts cost."""
        rest = self._rest
        if not goes_on:
            self._began_s = self._clock()
            rest.pause()
        self._waited = False
        if rest.num_steps and not rest.least <= batch <= rest.most:
            rest.go_on(batch, 0 if rest.is_of_batch else self._adaptive.hopeless_length(batch))
        return rest.num_steps > 0

    def _begin_rest(
        self,
        requests: Collection[Request],
        batch: int,
        *,
        overlaps: bool,
        asked_s: float | None = None,
    ) -> None:
        """Begin a rest, because drafts of ``requests`` do not pay; only if these are the whole
        batch, and without grammars. overlaps: a step is in flight. asked_s: the seconds that the
        proposer took to find no drafts, if it was asked."""
        if len(requests) == batch and not any(request.constrained for request in requests):
            self._observe_rest()
            adaptive = self._adaptive
            num_steps = adaptive.rest_length(batch, asked_s, overlaps=overlaps)
            is_hopeless = adaptive.hopeless_length(batch) > 0
            self._rest.begin(
                num_steps,
                batch,
                overlaps=adaptive.overlaps if is_hopeless else overlaps,
                is_of_batch=not is_hopeless,
            )
            if is_hopeless:
                self._expect_probe(batch)

    def _expect_probe(self, batch: int) -> None:
        """Tell the rest when a probe is due. It is best begun behind a prompt: all features of that
        are kept, and the network must catch up with it anyway. So the rest goes on for a while."""
        num_steps = self._adaptive.num_steps_to_probe(batch, self._max_tokens)
        self._rest.expect_probe(num_steps, _MAX_PROMPTLESS)

    def _observe_rest(self) -> None:
        """Learn from the steps of rests that are over."""
        self._observe_ends()
        seconds, num_tokens, num_passed = self._rest.take()
        if num_tokens:
            self._adaptive.observe_rest(seconds, num_tokens, num_passed)

    def propose(self, running: Collection[Request]) -> None:
        """Draft for the next step. Every token of ``running`` must be known."""
        self._is_probe = False
        self._drafting_s = 0.0
        self._forced = set()
        for request in self._drafted:
            request.draft_token_ids = []
        self._drafted = []
        max_forced = self._max_forced
        if self._proposer is None and len(running) > MAX_FORCED_BATCH:
            max_forced = 0
        if max_forced == 0 and self._proposer is None:
            return
        asked: dict[Request, int] = {}
        for request in running:
            room = request.draft_room
            if room <= 0:
                continue
            if request.constrained:
                forced = self._grammars.forced_tokens(request)
                request.draft_token_ids = forced[: min(max_forced, room)]
            if request.draft_token_ids:
                self._forced.add(request.request_id)
                self._drafted.append(request)
            else:
                asked[request] = min(self._max_tokens, room)
        if asked and self._proposer is not None:
            ask = self._ask_text if self._proposer.is_free else self._ask_network
            ask(self._proposer, asked, len(running))
            self._drafted += [request for request in asked if request.draft_token_ids]

    def _ask_network(self, proposer: Proposer, asked: dict[Request, int], batch: int) -> None:
        """Draft with a network. Its drafts cost time, so their number is decided first."""
        most = max(asked.values())
        length = self._uniform_length(batch, most)
        probe_length = 0 if length else self._probe_length(batch, most)
        has_features, self.keeps_features = self.keeps_features, length > 0 or probe_length > 0
        if not self.keeps_features:
            self._begin_rest(asked, batch, overlaps=False)
        elif has_features:
            if length == 0:
                self._is_probe = True
                length, asked = probe_length, self._adaptive.probed(asked)
            self._draft(proposer, {r: min(limit, length) for r, limit in asked.items()})

    def _uniform_length(self, batch: int, most: int) -> int:
        """Drafts of each request, at most ``most``: those of the streak, if there is one."""
        if self._is_in_streak(batch):
            return min(self._streak.length, most)
        return self._adaptive.uniform_length(batch, most)

    def _is_in_streak(self, batch: int) -> bool:
        """Whether the next step, of so many requests, belongs to a streak."""
        streak = self._streak
        if streak.num_steps and batch and not streak.least <= batch <= streak.most:
            streak.go_on(self._adaptive.steady_length(batch, self._max_tokens), batch)
        return streak.num_steps > 0

    def _probe_length(self, batch: int, most: int) -> int:
        """Drafts of each request of a probe, if one may take place now; else 0."""
        adaptive = self._adaptive
        if self._num_probes and not adaptive.is_probing:
            return 0
        return adaptive.probe_length(batch, most)

    def _ask_text(self, proposer: Proposer, asked: dict[Request, int], batch: int) -> None:
        """Draft from texts. That costs little, so the number to verify is decided afterwards, from
        what was found. In a streak all of it is verified."""
        if self._is_in_streak(batch):
            self._draft(proposer, asked)
            self._surprises.end(found=any(request.draft_token_ids for request in asked))
            return
        adaptive = self._adaptive
        probe_length = adaptive.probe_length(batch, max(asked.values()))
        if not (probe_length or self._paid or adaptive.may_pay(asked, batch)):
            self._begin_rest(asked, batch, overlaps=False)
            return
        began_s = self._clock()
        self._draft(proposer, asked)
        found = {r: len(r.draft_token_ids) for r in asked if r.draft_token_ids}
        if not found:
            self._paid = False
            asked_s = self._clock() - began_s
            self._begin_rest(asked, batch, overlaps=False, asked_s=asked_s)
            return
        lengths = adaptive.lengths(found, batch)
        self._paid, self._all_paid = any(lengths.values()), lengths == found
        if probe_length and not self._paid:
            self._is_probe = True
            lengths = dict.fromkeys(found, 0)
            lengths |= dict.fromkeys(adaptive.probed(found), probe_length)
        for request, length in lengths.items():
            del request.draft_token_ids[length:]

    def _draft(self, proposer: Proposer, asked: dict[Request, int]) -> None:
        """Set the drafts of the requests in ``asked``, at most so many each."""
        began_s = self._clock()
        drafts = proposer.propose(list(asked.items()))
        for request, draft in zip(asked, drafts, strict=True):
            request.draft_token_ids = (
                self._grammars.legal_prefix(request, draft) if request.constrained else draft
            )
        self._drafting_s = self._clock() - began_s

    def planned(
        self, plan: StepPlan, num_tokens: int, *, overlaps: bool, constrained: bool = False
    ) -> Noted | None:
        """A step was planned; returns what ``collected`` needs to know of it, if anything is to be
        learned. num_tokens: of the plan. overlaps: another step is in flight. constrained: a
        grammar decides on some of its tokens."""
        if self._proposer is None:
            return None
        if constrained:
            self._rest.end()  # Forced tokens are nearly free: look for them in each step.
        if self._rest.passes(len(plan.chunks)):
            if plan.admissions:
                self._admitted_in_rest(plan)
            return None  # What most steps of a rest come to: no further calls.
        if self._rest.num_steps:
            of_rest = self._planned_in_rest(plan, num_tokens, overlaps=overlaps)
            if of_rest is not None:
                return of_rest
        is_free, streak = self._proposer.is_free, self._streak
        may_pass = streak.num_steps > 0 or streak.follows_others
        if may_pass and self._passes_in_streak(plan, num_tokens, is_free=is_free):
            return OfTextStreak(plan.chunks) if is_free else None
        step = self._look_at(plan, num_tokens, overlaps=overlaps)
        if step.is_probe and not is_free:
            self._num_probes += 1
        self._adaptive.planned(step)
        decided = self._all_paid or not is_free
        if streak.may_begin and step.num_drafts and step.only_decodes and decided:
            length = self._adaptive.steady_length(step.batch, self._max_tokens)
            if length:
                streak.begin(length, step.batch)
        return LookedAt(step, plan, self._forced)

    def _passes_in_streak(self, plan: StepPlan, num_tokens: int, *, is_free: bool) -> bool:
        """As ``Streak.passes``, for a step that was planned."""
        batch, streak = len(plan.chunks), self._streak
        has_drafts, has_newcomers = bool(self._drafted), bool(plan.admissions)
        # Drafts from texts make newcomers cost something to others alone.
        are_all = is_free and len(plan.admissions) == batch
        return streak.passes(
            batch,
            is_usual=has_drafts and not has_newcomers and num_tokens <= batch * streak.tokens,
            has_drafts=has_drafts,
            has_newcomers=has_newcomers and not are_all,
        )

    def _look_at(self, plan: StepPlan, num_tokens: int, *, overlaps: bool) -> PlannedStep:
        """What is remembered of a step that was planned, and that is learned from by itself."""
        batch, streak = len(plan.chunks), self._streak
        num_drafts = longest = 0
        if self._drafted:
            lengths = [len(chunk.draft_token_ids) for chunk in plan.chunks]
            num_drafts, longest = sum(lengths), max(lengths, default=0)
        step = PlannedStep(
            batch,
            longest,
            num_drafts,
            self._began_s,
            self._is_probe,
            num_tokens == batch + num_drafts and not plan.admissions,
            overlaps,
            was_awaited=self._waited,
            num_new=len(plan.admissions),
            exposed_s=0.0 if overlaps else self._clock() - max(self._began_s, self._collected_s),
            drafting_s=self._drafting_s,
            follows_others=streak.follows_others,
        )
        step.num_like, step.like = streak.looks(has_drafts=num_drafts > 0)
        return step

    def _planned_in_rest(self, plan: StepPlan, num_tokens: int, *, overlaps: bool) -> OfRest | None:
        """As ``planned``, in a rest of which the step may be timed; None if it ends the rest."""
        batch = len(plan.chunks)
        is_plain = batch == num_tokens and not plan.admissions
        usual_batch = self._rest.plan(batch, is_plain=is_plain, overlaps=overlaps)
        if usual_batch is None:
            return None
        if plan.admissions:
            self._admitted_in_rest(plan)
        return OfRest(usual_batch)

    def _admitted_in_rest(self, plan: StepPlan) -> None:
        """A step of a rest admits requests, which may be a reason to end the rest."""
        batch = len(plan.chunks)
        self._adaptive.admitted_in_rest(len(plan.admissions), batch)
        if self._rest.num_steps <= self._rest.num_steps_at_probe:
            self._observe_rest()
            if self._probe_length(batch, self._max_tokens):
                self._rest.end()
            else:
                self._expect_probe(batch)

    def collected(
        self,
        noted: Noted | None,
        result: StepResult,
        moved: Sequence[tuple[Request, list[int]]],
        following: Sequence[Noted | None],
    ) -> None:
        """A step is over. noted: by ``planned``. moved: the new tokens of each request. following:
        what was noted of the steps that are still in flight."""
        if self._proposer is None:
            return
        now, before_s = self._clock(), self._collected_s
        self._collected_s = now
        match noted:
            case OfRest(batch):
                seconds, follower = now - before_s, _batch_of_next(following)
                self._rest.collect(batch, seconds, len(moved), follower=follower)
            case OfTextStreak(chunks):
                self._note(chunks, result)
            case LookedAt(step) as looked_at:
                self._observe_rest()
                if step.overlaps and not following:
                    step.is_last = True
                step.num_tokens = sum(len(token_ids) for _, token_ids in moved)
                self._collected.append((looked_at, now - max(step.began_s, before_s), result))

    def _note(self, chunks: Sequence[Chunk], result: StepResult) -> None:
        """Note which drafts of a step of a streak were right."""
        gained = False
        for chunk, token_ids in zip(chunks, result.token_ids, strict=True):
            num_drafts = len(chunk.draft_token_ids)
            if num_drafts and token_ids and not chunk.constrained:
                self._outcomes.append((chunk.request_id, num_drafts, len(token_ids) - 1))
                gained |= len(token_ids) > 1
        self._streak.judge(gained=gained)

    def learn(self, unfinished: Container[str]) -> None:
        """Learn from the steps that are over; called while the device is busy. unfinished: ids of
        the requests that are still running."""
        if self._collected:
            self._observe_ends()
        if self._outcomes and not self._streak.num_steps:
            noted, self._outcomes = self._outcomes, []
            self._adaptive.observe_streak(
                [(name if name in unfinished else "", made, right) for name, made, right in noted]
            )
        while self._collected:
            (step, plan, forced), seconds, result = self._collected.popleft()
            judged = zip(plan.chunks, result.token_ids, strict=True) if step.num_drafts else ()
            outcomes = [
                (chunk.request_id, len(chunk.draft_token_ids), len(token_ids) - 1)
                for chunk, token_ids in judged
                if chunk.draft_token_ids and token_ids
                if chunk.request_id in unfinished and chunk.request_id not in forced
            ]
            self._adaptive.observe(step, seconds, outcomes)
            self._num_probes = max(0, self._num_probes - step.is_probe)
            if step.num_drafts and self._proposer is not None and not self._proposer.is_free:
                # Computes and caches what the next ``foresees_drafts`` will ask, while there is
                # time.
                self._adaptive.uniform_length(step.batch, self._max_tokens)

    def foresees_drafts(self, running: Collection[Request]) -> bool:
        """Whether drafts are expected once the result of the step in flight is known.

        If so, the core waits for it; otherwise it plans the next step while that one runs.
        """
        if self._proposer is None:
            return False
        adaptive, batch, most = self._adaptive, len(running), self._max_tokens
        if not self._proposer.is_free:
            length = self._uniform_length(batch, most) or self._probe_length(batch, most)
            wants_drafts = length > 0
            has_features, self.keeps_features = self.keeps_features, wants_drafts
            if not wants_drafts:
                self._begin_rest(running, batch, overlaps=True)
            return wants_drafts and has_features and any(map(_may_go_on, running))
        able = [request for request in running if _may_go_on(request)]
        if not able:
            return False
        if self._is_in_streak(batch):
            foresees = any(self._foresees(self._proposer, request) for request in able)
            self._surprises.end(found=foresees)
            if not foresees:
                self._surprises.begin()
            self._waited = foresees or self._surprises.are_likely
            return self._waited
        is_probe = self._probe_length(batch, most) > 0
        if not (is_probe or adaptive.may_pay(able, batch)):
            self._begin_rest(running, batch, overlaps=True)
            return False
        if not adaptive.may_wait():
            return False
        began_s = self._clock()
        foreseen = [request for request in able if self._foresees(self._proposer, request)]
        if not foreseen:
            asked_s = self._clock() - began_s
            self._begin_rest(running, batch, overlaps=True, asked_s=asked_s)
            return False
        lengths = adaptive.lengths(dict.fromkeys(foreseen, self._max_tokens), batch)
        self._waited = any(lengths.values()) or is_probe
        return self._waited

    def _foresees(self, proposer: Proposer, request: Request) -> bool:
        if request.constrained and len(self._grammars.forced_tokens(request)) >= 2:
            return True  # The first is the token in flight, the second can be drafted.
        return proposer.foresees(request)

    def drop(self, request: Request) -> None:
        """The request is finished: forget it."""
        if self._proposer is None:
            return
        if self._proposer.is_free:
            self._proposer.drop(request)
            self._adaptive.drop(request)
        else:
            self._num_ended += 1  # Nothing is kept of a request.

    def _observe_ends(self) -> None:
        if self._num_ended:
            self._adaptive.end(self._num_ended)
            self._num_ended = 0


def _batch_of_next(following: Sequence[Noted | None]) -> int | None:
    """The batch of the oldest step in flight; 0 if it is not known to decode only; None if there is
    no step."""
    if not following:
        return None
    match following[0]:
        case OfRest(batch):
            return batch
        case LookedAt(step):
            return step.batch if step.only_decodes else 0
    return 0


def _may_go_on(request: Request) -> bool:
    """Whether more tokens may follow the one in flight."""
    return request.num_pending > 0 and request.num_planned_tokens + 1 < request.max_total_tokens


def create_proposer(config: SpeculativeConfig, runner: Runner) -> Proposer:
    """The proposer that ``config.method`` names. runner: drafts for the methods with a network."""
    if config.method in NETWORK_METHODS:
        return NetworkProposer(runner)
    if config.method == "suffix":
        return SuffixProposer(config)
    return NgramProposer(*config.lookup)
