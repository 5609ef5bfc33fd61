"""Where the core gets drafts from: tokens that grammars force, and the configured proposer.

For each step the core calls, in this order::

    begin      whether drafts are considered at all; if not, ``planned`` is next
    foresees   with a step in flight: whether to wait for its tokens, to draft after them
    propose    draft
    planned    once the step is planned
    collected  when its result is there
    learn      while the device is busy with the next step

``Controller`` decides how many drafts pay. Where they do not, steps are idle: nothing is asked,
decided or timed in them, so that they cost as much as without speculation."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from engine.spec.config import NETWORK_METHODS
from engine.spec.controller import MAX_WAIT, PROBE_REQUESTS, Controller
from engine.spec.costs import Noted
from engine.spec.network import NetworkProposer
from engine.spec.ngram import NgramProposer
from engine.spec.prediction import PredictedProposer
from engine.spec.suffix import SuffixProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping
    from typing import Protocol

    from engine.request import Request
    from engine.scheduler.plan import Runner, StepResult
    from engine.scheduler.step import Step
    from engine.spec.base import Proposer
    from engine.spec.config import SpeculativeConfig

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

# Asking a text proposer that finds no drafts may take this share of the time. To keep within it,
# up to so many steps are idle after that.
_ASKING_SHARE, _MAX_FRUITLESS = 0.02, 16
# Where drafts from texts are found and do not pay, so many steps are idle, and each time twice as
# many. At the limit they are waited for and checked a few times all the same, to learn whether they
# still do not pay.
_PUT_OFF, _MAX_PUT_OFF, _NUM_PROBES = 4, 512, 4
# The weight of the latest time in how often drafts were found after a wait; and a share for which
# it need not even be computed whether a wait pays.
_FOUND_SHARE, _UNLIKELY = 1 / 16, 0.05


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
        self.keeps_features = True
        """Whether the next step keeps hidden states for the draft network: only if it has drafts,
        or the step after it will."""
        self._max_tokens = 0
        self._max_forced = MAX_FORCED if drafts_forced else 0
        if config is not None:
            self._proposer = proposer or create_proposer(config, runner)
            self._max_tokens = self._max_forced = config.num_tokens
        self._is_free = self._proposer is not None and self._proposer.is_free
        self._control: Controller | None = None
        """None: always as many drafts as allowed."""
        if runner.step_costs is not None and self._proposer is not None:
            self._control = Controller(runner.step_costs, by_request=self._is_free)

        self._num_idle = 0
        """Idle steps still to be planned."""
        self._num_passed = 0
        """Idle steps that were planned."""
        self._idle_batch = 0
        self._least = self._most = 0
        """Requests of the batches for which steps are idle."""
        self._put_off = _PUT_OFF

        self._began_s = self._collected_s = 0.0
        self._over: list[tuple[Noted, float, StepResult]] = []
        """Steps that are over, with the seconds of each, to be learned from."""
        self._forced: set[str] = set()
        """Ids of the requests whose present drafts a grammar forced."""
        self._drafted: list[Request] = []
        """The requests that have drafts."""
        self._num_prompts, self._had_drafts = 0, False
        """Prompts in the last step, and whether it had drafts or was waited for."""
        self._waits = self._is_probe = False
        """Of the step that is being planned: whether a step in flight was waited for in order to
        draft, and whether its drafts are to be checked though they do not pay."""
        self._num_probes = 0
        """Times left that drafts from texts are checked though they do not pay."""
        self._foresaw: bool | None = None
        """Whether drafts were foreseen, if it is not known yet whether some were found."""
        self._found = {True: 1.0, False: 0.0}
        """By whether drafts were foreseen: how often some were found once the tokens in flight were
        known."""

    # ---- idle steps -----------------------------------------------------------------------------

    def begin(self, batch: int, *, goes_on: bool) -> bool:
        """The planning of a step of ``batch`` requests begins. Returns whether drafts are
        considered.

        goes_on: the engine was not idle before, so the step's time counts from the last result:
        without overlap, the host's work is a part of what drafts cost."""
        self._waits = False
        if not goes_on:
            self._began_s = self._clock()
        if self._num_idle and not self._least <= batch <= self._most:
            self._end_idle()
        return not self._num_idle

    def _begin_idle(self, requests: Collection[Request], batch: int, num_steps: int) -> None:
        """Nothing is to be asked for so many steps, unless a grammar may force tokens."""
        if num_steps <= 0 or self._drafted or any(request.constrained for request in requests):
            return
        self._num_idle, self._num_passed, self._idle_batch = num_steps, 0, batch
        # A network's switch depends on the batch, rounded up to a power of two.
        self._most = 1 << 31 if self._is_free or not batch else 1 << (batch - 1).bit_length()
        self._least = 0 if self._is_free or not batch else self._most // 2 + 1

    def _end_idle(self, *, has_newcomers: bool = False) -> None:
        if self._control is not None:
            self._control.pass_by(self._idle_batch, self._num_passed, has_newcomers=has_newcomers)
        self._num_idle = self._num_passed = 0

    # ---- drafting -------------------------------------------------------------------------------

    def propose(self, running: Collection[Request]) -> None:
        """Draft for the next step. Every token of ``running`` must be known."""
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
            ask = self._ask_text if self._is_free else self._ask_network
            ask(self._proposer, asked, len(running))
            self._drafted += [request for request in asked if request.draft_token_ids]

    def _ask_network(self, proposer: Proposer, asked: dict[Request, int], batch: int) -> None:
        """Draft with a network. Its drafts cost time, so their number is decided first."""
        has_features, length = self.keeps_features, self._length(batch)
        if not length:
            self._begin_idle_network(asked, batch)
        elif has_features:
            if self._control is not None and self._control.is_probe:
                # The latest, with the fewest tokens since their prompt, of which nothing was kept.
                asked = dict(islice(reversed(asked.items()), PROBE_REQUESTS))
            self._draft(proposer, {r: min(limit, length) for r, limit in asked.items()})

    def _length(self, batch: int) -> int:
        """Drafts of each request from a network in the next step."""
        length = self._max_tokens if self._control is None else self._control.length(batch)
        self.keeps_features = length > 0
        return min(length, self._max_tokens)

    def _begin_idle_network(self, requests: Collection[Request], batch: int) -> None:
        if self._control is not None and (num_steps := self._control.num_idle(batch)) > 0:
            self._begin_idle(requests, batch, num_steps)

    def _ask_text(self, proposer: Proposer, asked: dict[Request, int], batch: int) -> None:
        """Draft from texts. That costs little, so the number to check is decided afterwards."""
        control, is_probe = self._control, self._is_probe
        self._is_probe = False
        if control is None:
            self._draft(proposer, asked)
            return
        if not control.drafts:
            return
        began_s = self._clock()
        self._draft(proposer, asked)
        found = {r: len(r.draft_token_ids) for r in asked if r.draft_token_ids}
        if self._waits:
            self._judge_foresight(found=bool(found))
        if not found:
            self._rest_fruitless(asked, batch, self._clock() - began_s)
            return
        lengths = control.lengths(found, batch)
        if any(lengths):
            self._put_off = _PUT_OFF
        elif is_probe or self._is_probe_due(asked, batch):
            lengths = list(found.values())[:PROBE_REQUESTS]
            lengths += [0] * (len(found) - len(lengths))
        for request, length in zip(found, lengths, strict=True):
            del request.draft_token_ids[length:]

    def _rest_fruitless(self, requests: Collection[Request], batch: int, asked_s: float) -> None:
        """A proposer took so many seconds to find nothing."""
        if self._control is not None and batch:
            num_steps = asked_s / (_ASKING_SHARE * self._control.costs.plain_s(batch))
            self._begin_idle(requests, batch, min(int(num_steps), _MAX_FRUITLESS))

    def _is_probe_due(self, requests: Collection[Request], batch: int) -> bool:
        """Drafts from texts were found and do not pay. Returns whether to check some all the same;
        if not, the next steps are idle."""
        if self._put_off == _MAX_PUT_OFF:
            self._put_off, self._num_probes = _MAX_PUT_OFF // 2, _NUM_PROBES
        if self._num_probes:
            self._num_probes -= 1
            return True
        self._begin_idle(requests, batch, self._put_off)
        self._put_off *= 2
        return False

    def _draft(self, proposer: Proposer, asked: Mapping[Request, int]) -> None:
        """Set the drafts of the requests in ``asked``, at most so many each."""
        drafts = proposer.propose(list(asked.items()))
        for request, draft in zip(asked, drafts, strict=True):
            request.draft_token_ids = (
                self._grammars.legal_prefix(request, draft) if request.constrained else draft
            )

    # ---- waiting for a step in flight -----------------------------------------------------------

    def foresees(self, running: Collection[Request]) -> bool:
        """Whether drafts are expected once the result of the step in flight is known.

        If so, the core waits for it; otherwise it plans the next step while that one runs.
        """
        proposer, batch = self._proposer, len(running)
        if proposer is None:
            return False
        if self._is_free:
            self._waits = self._foresees_text(proposer, running, batch)
            return self._waits
        has_features = self.keeps_features
        if not self._length(batch):
            self._begin_idle_network(running, batch)
            return False
        self._waits = has_features and any(map(_may_go_on, running))
        return self._waits

    def _foresees_text(self, proposer: Proposer, running: Collection[Request], batch: int) -> bool:
        control, able = self._control, [request for request in running if _may_go_on(request)]
        if not able or (control is not None and not control.drafts):
            return False
        began_s = self._clock()
        foreseen = [request for request in able if self._foresees(proposer, request)]
        if control is None:
            return bool(foreseen)
        if self._foresaw is False:
            # Drafts that are foreseen now would have been found one token earlier.
            self._judge_foresight(found=bool(foreseen))
        self._foresaw = bool(foreseen)
        share = self._found[self._foresaw]
        expected = dict.fromkeys(foreseen or able, self._max_tokens)
        if share > _UNLIKELY and any(control.lengths(expected, batch, share)):
            return True
        if not foreseen:
            self._rest_fruitless(running, batch, self._clock() - began_s)
            return False
        self._foresaw = None
        self._is_probe = self._is_probe_due(running, batch)
        return self._is_probe

    def _judge_foresight(self, *, found: bool) -> None:
        if self._foresaw is not None:
            self._found[self._foresaw] += _FOUND_SHARE * (found - self._found[self._foresaw])
            self._foresaw = None

    def _foresees(self, proposer: Proposer, request: Request) -> bool:
        if request.constrained and len(self._grammars.forced_tokens(request)) >= 2:
            return True  # The first is the token in flight, the second can be drafted.
        return proposer.foresees(request)

    # ---- learning -------------------------------------------------------------------------------

    def planned(self, step: Step) -> Noted | None:
        """A step was planned; returns what ``collected`` needs to know of it, if anything is to be
        learned."""
        if self._num_idle:
            self._num_idle -= 1
            self._num_passed += 1
            # Forced tokens are nearly free: look for them in each step.
            if step.constrained or not self._num_idle:
                self._end_idle()
            elif step.plan.admissions and self._num_idle <= MAX_WAIT and not self._is_free:
                self._end_idle(has_newcomers=True)
            return None
        control = self._control
        if control is None:
            return None
        chunks, is_probe, num_before = step.plan.chunks, control.is_probe, self._num_prompts
        drafting, had_drafts = control.drafts, self._had_drafts
        self._num_prompts, self._had_drafts = 0, step.num_drafts > 0 or self._waits
        if step.num_tokens != len(chunks) + step.num_drafts:
            self._num_prompts = sum(c.num_scheduled_tokens > 1 + c.num_draft_tokens for c in chunks)
        is_noted = control.advance(len(chunks), has_newcomers=bool(step.plan.admissions))
        if not (is_noted or (step.num_drafts and self._is_free)):
            return None
        num_newcomers = num_before + self._num_prompts
        is_usual = num_newcomers == 0 and had_drafts == self._had_drafts
        return Noted(
            chunks,
            self._forced,
            self._began_s,
            self._had_drafts,
            drafting,
            num_newcomers / 2,
            is_usual and (not is_probe or len(self._drafted) == len(chunks)),
        )

    def collected(self, noted: Noted | None, result: StepResult) -> None:
        """A step is over. noted: by ``planned``."""
        if self._control is None:
            return
        now, before_s = self._clock(), self._collected_s
        self._collected_s = now
        if noted is not None and noted.chunks:
            self._over.append((noted, now - max(noted.began_s, before_s), result))

    def learn(self, unfinished: Container[str]) -> None:
        """Learn from the steps that are over; called while the device is busy. unfinished: ids of
        the requests that are still running."""
        if not self._over:
            return
        over, self._over = self._over, []
        for noted, seconds, result in over:
            outcomes = [
                (chunk.request_id, chunk.num_draft_tokens, len(token_ids) - 1)
                for chunk, token_ids in zip(noted.chunks, result.token_ids, strict=True)
                if chunk.draft_token_ids and token_ids
                if chunk.request_id in unfinished and chunk.request_id not in noted.forced
            ]
            if self._control is not None:
                self._control.observe(noted, seconds, outcomes)

    def drop(self, request: Request) -> None:
        """The request is finished: forget it."""
        if self._proposer is not None and self._is_free:
            self._proposer.drop(request)
            if self._control is not None:
                self._control.acceptance.drop(request.request_id)


def _may_go_on(request: Request) -> bool:
    """Whether more tokens may follow the one in flight."""
    return request.num_pending > 0 and request.num_planned_tokens + 1 < request.max_total_tokens


def create_proposer(config: SpeculativeConfig, runner: Runner) -> Proposer:
    """The proposer that ``config.method`` names. runner: drafts for the methods with a network."""
    if config.method in NETWORK_METHODS:
        return NetworkProposer(runner)
    if config.method == "suffix":
        return PredictedProposer(SuffixProposer(config))
    return PredictedProposer(NgramProposer(*config.lookup))
