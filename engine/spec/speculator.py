"""What the core asks for drafts: the forced tokens of grammars, and the configured proposer."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from engine.spec.adaptive import AdaptiveLength
from engine.spec.config import NETWORK_METHODS
from engine.spec.fixed import FixedLength
from engine.spec.network import NetworkProposer
from engine.spec.ngram import NgramProposer
from engine.spec.planned_step import PlannedStep
from engine.spec.rest import Rest
from engine.spec.suffix import SuffixProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Sequence
    from typing import Protocol

    from engine.request import Request
    from engine.scheduler.plan import Runner, StepPlan, StepResult
    from engine.spec.base import Proposer
    from engine.spec.config import SpeculativeConfig
    from engine.spec.fixed import DraftLength

    class Grammars(Protocol):
        """What ``engine.constraints.Constraints`` knows of drafts."""

        def forced_tokens(self, request: Request) -> list[int]: ...

        def legal_prefix(self, request: Request, token_ids: list[int]) -> list[int]: ...


MAX_FORCED = 7
"""Tokens that a grammar forces, drafted in a step without a config: with the one before they are
as many as attention takes for few."""

MAX_FORCED_BATCH = 4
"""And only in batches of up to so many, where a step waits for memory more than it computes."""


_UNTIMED = -1
"""Stands for a step of a rest of which only the tokens count."""

_MAX_SKIPPED = 3
"""Of steps with drafts that are alike so many pass between two that are looked at: what can be
learned of each takes the host longer than small models take to compute it."""


class Speculator:
    """Writes the ``draft_token_ids`` of running requests. None of it changes what they say."""

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
        """``proposer``: in place of the one that ``config`` names; ``drafts_forced``: draft what
        grammars force without a config, too."""
        self._grammars = grammars
        self._proposer = proposer
        self._clock = clock
        self._began_s = self._collected_s = 0.0
        self._planned: deque[tuple[PlannedStep, StepPlan, set[str]] | int | None] = deque()
        """Steps in flight, each with the requests whose drafts a grammar forced; of a step at rest
        its batch, or ``_UNTIMED``, and None of one that nothing is learned of."""
        self._last: PlannedStep | None = None
        self._num_skipped = 0
        """Steps like the last one since then."""
        self._collected: deque[tuple[PlannedStep, float, StepPlan, StepResult, set[str]]] = deque()
        """Steps that are over, each with its seconds; nothing was learned of them yet."""
        self._drafting_s = 0.0
        """What it took to make the drafts of the step that is planned now."""
        self._is_probe = self._waited = False
        self._num_probes = 0
        """Probes of a network that nothing was learned of yet: what the next one may cost is not
        known before."""
        self._paid = False
        """Whether the last drafts of a free proposer were worth a check."""
        self._forced: set[str] = set()
        self._drafted: list[Request] = []
        """Those that have drafts."""
        self.keeps_features = True
        """Whether the next step keeps what a draft network reads: only where there are drafts, or
        will be in the step after it."""
        self._rest = Rest()
        self._max_tokens = 0
        self._max_forced = MAX_FORCED if drafts_forced else 0
        if config is not None:
            self._proposer = proposer or create_proposer(config, runner)
            self._max_tokens = self._max_forced = config.num_tokens
        self._adaptive: DraftLength = FixedLength()
        if runner.step_costs is not None:
            # A network drafts as much for all, whatever is known of each.
            by_request = self._proposer is not None and self._proposer.is_free
            self._adaptive = AdaptiveLength(runner.step_costs, by_request=by_request)

    def begin(self, *, goes_on: bool) -> None:
        """A step begins. goes_on: there was work all along, so what it takes includes all since the
        last result: where nothing overlaps, the host's work is a part of what drafts cost."""
        if not goes_on:
            self._began_s = self._clock()
            self._rest.pause()
        self._waited = False

    def rests(self, batch: int) -> bool:
        """Whether the next step of so many requests runs as if there were no drafts at all. Where
        they do not pay that is so for several steps at a time."""
        rest = self._rest
        if rest.num_steps and rest.batch != batch:
            if self._adaptive.is_hopeless(batch):
                rest.batch = batch
            else:
                rest.end()
        return rest.num_steps > 0

    def _begin_rest(
        self,
        requests: Collection[Request],
        batch: int,
        *,
        overlaps: bool,
        asked_s: float | None = None,
    ) -> None:
        """No drafts pay of these requests of a batch, so neither do questions. asked_s: nobody had
        an idea, and to ask took so long."""
        if len(requests) == batch and not any(request.constrained for request in requests):
            self._observe_rest()
            num_steps = self._adaptive.rest_length(batch, asked_s, overlaps=overlaps)
            is_hopeless = self._adaptive.is_hopeless(batch)
            self._rest.begin(
                num_steps,
                batch,
                overlaps=self._adaptive.overlaps if is_hopeless else overlaps,
                is_of_batch=not is_hopeless,
            )

    def _observe_rest(self) -> None:
        """Learn from the steps of a rest that are over."""
        seconds, num_tokens, num_passed = self._rest.take()
        if num_tokens:
            self._adaptive.observe_rest(seconds, num_tokens, num_passed)

    def propose(self, running: Collection[Request]) -> None:
        """Drafts for the next step; every token of the requests that get some is known."""
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
        """As many drafts for all, before there are any: they cost time."""
        most = max(asked.values())
        probe_length = self._probe_length(batch, most)
        length = self._adaptive.uniform_length(batch, most)
        has_features, self.keeps_features = self.keeps_features, length > 0 or probe_length > 0
        if not self.keeps_features:
            self._begin_rest(asked, batch, overlaps=False)
        elif has_features:
            if length == 0:
                self._is_probe = True
                length, asked = probe_length, self._adaptive.probed(asked)
            self._draft(proposer, {r: min(limit, length) for r, limit in asked.items()})

    def _probe_length(self, batch: int, most: int) -> int:
        adaptive = self._adaptive
        if self._num_probes and not adaptive.is_probing:
            return 0
        return adaptive.probe_length(batch, most)

    def _ask_text(self, proposer: Proposer, asked: dict[Request, int], batch: int) -> None:
        """Of the drafts that are found those that pay."""
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
        self._paid = any(lengths.values())
        if probe_length and not self._paid:
            self._is_probe = True
            lengths = dict.fromkeys(found, 0)
            lengths |= dict.fromkeys(adaptive.probed(found), probe_length)
        for request, length in lengths.items():
            del request.draft_token_ids[length:]

    def _draft(self, proposer: Proposer, asked: dict[Request, int]) -> None:
        began_s = self._clock()
        drafts = proposer.propose(list(asked.items()))
        for request, draft in zip(asked, drafts, strict=True):
            request.draft_token_ids = (
                self._grammars.legal_prefix(request, draft) if request.constrained else draft
            )
        self._drafting_s = self._clock() - began_s

    def planned(self, plan: StepPlan, num_tokens: int, *, overlaps: bool) -> None:
        """What the step does, to be learned from when it is over. num_tokens: of the plan;
        overlaps: another one is in flight."""
        if self._proposer is None:
            return
        batch = len(plan.chunks)
        if not plan.admissions and self._rest.passes():
            self._planned.append(_UNTIMED)
            return
        if self._rest.num_steps:
            is_plain = batch == num_tokens and not plan.admissions
            planned = self._rest.plan(batch, is_plain=is_plain, overlaps=overlaps)
            if planned is not None:
                self._planned.append(planned)
                if plan.admissions and self._probe_length(batch, self._max_tokens):
                    # Newcomers' features are all kept, and behind a prompt a network has to catch
                    # up with anyway: no better time for a probe.
                    self._rest.end()
                if not is_plain and any(chunk.constrained for chunk in plan.chunks):
                    self._rest.end()  # What a grammar forces costs next to nothing.
                return
        if self._drafted and self._is_like_the_last(plan, num_tokens):
            self._num_skipped += 1
            self._planned.append(None)
            return
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
            num_like=1 + (self._num_skipped if num_drafts else 0),
        )
        self._num_skipped, self._last = 0, step
        if step.is_probe and not self._proposer.is_free:
            self._num_probes += 1
        self._adaptive.planned(step)
        self._planned.append((step, plan, self._forced))

    def _is_like_the_last(self, plan: StepPlan, num_tokens: int) -> bool:
        """Of a step with drafts: whether it is one of many, of which a few will do to learn."""
        last, batch = self._last, len(plan.chunks)
        if last is None or not last.num_drafts or self._num_skipped == _MAX_SKIPPED:
            return False
        if plan.admissions or self._is_probe or self._waited or self._forced:
            return False
        is_alike = (batch - 1).bit_length() == (last.batch - 1).bit_length() and (
            batch * last.length < num_tokens <= batch * (1 + last.length)
        )
        return is_alike and self._adaptive.is_steady(last)

    def collected(self, result: StepResult, moved: Sequence[tuple[Request, list[int]]]) -> None:
        """The oldest step is over. moved: what each request gained by it."""
        if self._proposer is None:
            return
        now = self._clock()
        planned = self._planned.popleft()
        if planned is None:
            self._collected_s = now
            return
        if planned == _UNTIMED:
            self._rest.passed(len(moved))
            self._collected_s = now
            return
        if isinstance(planned, int):
            follower = self._planned[0] if self._planned else None
            if follower == _UNTIMED:
                follower = 0
            elif isinstance(follower, tuple):
                follower = follower[0].batch * follower[0].only_decodes
            self._rest.collect(planned, now - self._collected_s, len(moved), follower=follower)
            self._collected_s = now
            return
        self._observe_rest()
        step, plan, forced = planned
        seconds = now - max(step.began_s, self._collected_s)
        self._collected_s = now
        if step.overlaps and not self._planned:
            step.is_last = True
        step.num_tokens = sum(len(token_ids) for _, token_ids in moved)
        self._collected.append((step, seconds, plan, result, forced))

    def learn(self, unfinished: Container[str]) -> None:
        """From the steps that are over; it need not be at once. unfinished: the requests that
        drafts may be asked for again."""
        while self._collected:
            step, seconds, plan, result, forced = self._collected.popleft()
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
                # The next step asks as soon as this one's successor is over: have the answer.
                self._adaptive.uniform_length(step.batch, self._max_tokens)

    def foresees_drafts(self, running: Collection[Request]) -> bool:
        """Whether it looks as if there will be drafts once the step in flight is known.

        If so, its result is worth waiting for; otherwise the next step is planned beside it.
        """
        if self._proposer is None:
            return False
        adaptive, batch = self._adaptive, len(running)
        is_probe = self._probe_length(batch, self._max_tokens) > 0
        if not self._proposer.is_free:
            wants_drafts = is_probe or adaptive.uniform_length(batch, self._max_tokens) > 0
            has_features, self.keeps_features = self.keeps_features, wants_drafts
            if not wants_drafts:
                self._begin_rest(running, batch, overlaps=True)
            return wants_drafts and has_features and any(map(_may_go_on, running))
        able = [request for request in running if _may_go_on(request)]
        if not able:
            return False
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
            return True  # The first stands for the token in flight.
        return proposer.foresees(request)

    def drop(self, request: Request) -> None:
        """The request is finished."""
        if self._proposer is not None:
            self._proposer.drop(request)
            self._adaptive.drop(request)


def _may_go_on(request: Request) -> bool:
    """Whether more tokens may follow the one in flight."""
    return request.num_pending > 0 and request.num_planned_tokens + 1 < request.max_total_tokens


def create_proposer(config: SpeculativeConfig, runner: Runner) -> Proposer:
    if config.method in NETWORK_METHODS:
        return NetworkProposer(runner)
    if config.method == "suffix":
        return SuffixProposer(config)
    return NgramProposer(*config.lookup)
