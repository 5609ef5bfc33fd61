"""Decides which tokens of which requests the next step computes.

There is no prefill phase and no decode phase. Every request has tokens that are known and a number
of tokens that are computed; a step lets the second catch up with the first, under one token budget.
A decode is a request that is one token behind, a prefill one that is many behind.

With one step of overlap, step N+1 is planned before the host has seen what step N sampled. Five
rules make that safe:

* A request that reaches its length limit with the token in flight gets no further chunk.
* A stop token is seen one step late. By then one more chunk is planned: its sample is dropped.
* The blocks and the row of a request are released when no step in flight has a chunk of it any
  more. So no block is handed out while a step may still read or write it, and ``_release`` is the
  only place that frees them. A step that copies blocks out to host memory counts as one that has a
  chunk. (Blocks behind a sliding window are released earlier, by the ``update`` for the last step
  that read them.)
* A request whose drafts are in flight gets no further chunk: how many of them are accepted, and so
  where it continues, is not known yet.
* A model in n stages computes n steps at a time, and n + 1 are in flight: see ``turn.py``.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from engine.request import Request, RequestState
from engine.scheduler.capacity import Capacity
from engine.scheduler.costs import StepTimes
from engine.scheduler.drafts import Lookahead, fitting_drafts, judge_drafts
from engine.scheduler.idle import IdleShare
from engine.scheduler.pictures import Pictures
from engine.scheduler.plan import Admission, Chunk, StepPlan, StepResult
from engine.scheduler.queue_limits import QueueLimits
from engine.scheduler.step import Step
from engine.scheduler.step_budget import StepBudget
from engine.scheduler.tenants import TenantTotals
from engine.scheduler.totals import SchedulerStats
from engine.scheduler.turn import Turn
from engine.scheduler.waiting import QUEUED, WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.cache.manager import CacheManager
    from engine.config import EngineConfig
    from engine.messages import FinishReason
    from engine.scheduler.capacity import Fit
    from engine.scheduler.claim import Claim
    from engine.scheduler.policy import SchedulingPolicy
    from engine.vision import Vision


class Scheduler:
    """Owns the running requests. ``WaitingQueue`` owns the others, in the order of the policy, and
    ``Capacity`` decides which of them fit in the cache.

    ``schedule`` plans a step and assumes that it will run; ``update`` processes the results of
    steps, in the order in which they were planned. ``most_in_flight`` are in flight at most.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: CacheManager,
        policy: SchedulingPolicy,
        clock: Callable[[], float] = time.monotonic,
        *,
        swap_s_per_block: float = 0.0,
        lookahead: Lookahead | None = None,
        vision: Vision | None = None,
    ) -> None:
        self.cache = cache
        self.policy = policy
        self._clock = clock
        self._costs = StepTimes(swap_s_per_block)
        self._lookahead = lookahead or Lookahead(cache, 0, 0)
        self.queue = QueueLimits(config)
        self.stats = SchedulerStats()
        self.tenants = TenantTotals()
        self.waiting = WaitingQueue(policy, config.max_loras)
        self.running: dict[str, Request] = {}
        """In the order of admission."""
        self._step_budget = StepBudget(config, self._costs)
        self._idle = IdleShare(self._costs)
        self._chunk_limit = config.chunk_tokens
        self._num_stages = config.pipeline_parallel_size
        # Every running request gets at least one token in every step.
        self._max_num_running = min(config.num_seqs, config.step_tokens)
        self._max_num_partial_prefills = config.max_num_partial_prefills
        self._free_rows = list(range(config.num_seqs - 1, -1, -1))
        self._released_rows: list[int] = []
        self.in_flight: deque[Step] = deque()
        """Steps that are planned and not updated yet, the oldest first."""
        self.pictures = Pictures(vision, config)
        self._capacity = Capacity(config, cache, self.pictures)
        self._is_short = False
        """Whether the last step left a request waiting, or a prompt without tokens it could use."""
        self._draining: dict[int, Request] = {}
        """Requests that left the batch with a chunk in a step in flight, by arrival number."""

    # ---- requests come and go -------------------------------------------------------------------

    def register(self, request: Request, *, is_moved: bool = False) -> None:
        """Count a request as queued, before ``add``. Raises ``QueueFull`` unless ``is_moved``."""
        if not request.was_admitted and not request.is_idle:
            self.queue.enter(request.fair_key, request.num_prompt_tokens, is_moved=is_moved)
        self.tenants.of(request.fair_key)  # From now on its totals are reported.
        self.waiting.note_grant(request)

    def add(self, request: Request) -> None:
        """Queue a new request, or one whose grammar is ready now."""
        if request.state is RequestState.WAITING_FOR_GRAMMAR:
            request.enter(RequestState.WAITING)
        self.waiting.add(request)
        request.is_new = False

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request in any state. What it holds is given back here or, if a step in flight
        needs it, by the ``update`` for that step."""
        if request.state is RequestState.RUNNING:
            self._leave_batch(request)
            self.policy.leave(request)
        elif request.state in QUEUED:
            self._leave_queue(request)
        if not request.was_admitted and not request.is_idle:
            self.queue.leave(request.fair_key, request.num_prompt_tokens)
        self.waiting.forget(request)
        request.finish(reason)

    def park(self, request: Request) -> None:
        """Set a request aside if it has begun to generate."""
        if request.state is RequestState.RUNNING and request.num_generated_tokens > 0:
            self._leave_batch(request)
            self._forget_progress(request)
            self.policy.leave(request)
        elif request.state in (RequestState.PREEMPTED, RequestState.SWAPPED):
            self._leave_queue(request)
        else:
            return
        request.enter(RequestState.PARKED)
        self.waiting.park(request)

    def unpark(self, request: Request) -> None:
        """Queue a parked request again. Its arrival decides its place, as after a preemption."""
        self.waiting.parked.remove(request)
        request.enter(RequestState.PREEMPTED)
        request.is_new = True  # As far as its tenant earned no credit meanwhile.
        self.add(request)

    def _preempt(self, step: Step, request: Request, cause: Request) -> None:
        """Move a running request back to the queue, with its known tokens. What it has computed is
        swapped out or dropped. cause: the request that needs its blocks or row."""
        if self._costs.is_worth_swapping(request, self.cache):
            pairs = self.cache.swap_out(request.block_table, request.num_settled_tokens)
            step.plan.swap_outs += pairs
            step.swapped.append(request)
            request.num_in_flight += 1
        self._leave_batch(request)
        self._forget_progress(request)
        swapped = request.block_table.swapped is not None
        request.enter(RequestState.SWAPPED if swapped else RequestState.PREEMPTED)
        self.stats.num_preemptions += 1
        self.tenants.of(cause.fair_key).preemptions_caused += 1
        self.tenants.of(request.fair_key).preemptions_suffered += 1
        self.waiting.add(request)
        self.policy.leave(request)

    def _forget_progress(self, request: Request) -> None:
        request.num_once_computed = max(request.num_once_computed, request.num_settled_tokens)
        request.num_computed_tokens = 0
        request.draft_token_ids = []

    def _leave_queue(self, request: Request) -> None:
        self.cache.drop_swapped(request.block_table)
        self.waiting.discard(request)

    def _leave_batch(self, request: Request) -> None:
        del self.running[request.request_id]
        if request.num_in_flight:
            self._draining[request.arrival] = request
        else:
            self._release(request)

    def _release(self, request: Request) -> None:
        self.cache.release(request.block_table, request.token_ids)
        self._capacity.release()
        self._released_rows.append(request.row)
        self._free_rows.append(request.row)
        request.row = -1

    # ---- planning a step ------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        """The next step, or None when there is nothing to compute."""
        step = Step(StepPlan(step_id=self.stats.num_steps), planned_s=self._clock())
        order = list(self.running.values())
        counted = self._idle.begin_step(order, self.queue.num_reqs)
        budget = self._step_budget.num_tokens(counted, self.queue.by_tenant)
        self.waiting.begin_step()
        self.pictures.begin_step(budget)
        self._is_short |= self.waiting.free_claimants()
        if len(self.policy) and (self._is_short or not self._free_rows):
            budget = self._admit_claimants(step, order, budget)
            order = list(self.running.values())[: len(self.running) - len(step.requests)]
        budget, enough = self._schedule_running(step, order, budget)
        if enough:
            self._admit_waiting(step, budget)
        self._is_short |= len(self.policy) > 0
        if not step.plan.chunks and not step.swapped:
            return None
        step.num_tokens = step.plan.num_tokens
        step.plan.released_rows, self._released_rows = self._released_rows, []
        self.stats.num_steps += 1
        self.in_flight.append(step)
        return step

    def _admit_claimants(self, step: Step, before: list[Request], budget: int) -> int:
        """Admit the waiting requests that need not wait for the running ones; those give way where
        room is short. Returns the tokens left of the budget. before: those that ran in the last
        step."""
        # However long a prompt is, it leaves one token of the budget for each running request.
        while (limit := budget - len(self.running) + len(step.requests)) > 0:
            for claim in self.policy.claims(list(self.running.values())):
                request = claim.request
                if request.num_in_flight > 0 or request in before:
                    continue  # It was preempted just now.
                if request.awaits_grant:
                    self.waiting.set_aside(request)
                    break
                if self.waiting.lacks_slot(claim, self.running.values()):
                    continue
                hit = self.cache.lookup(request.block_table, request.token_ids)
                if self.waiting.wait_for_prefix(request, hit):
                    break
                if self.pictures.must_wait(request, hit.num_tokens):
                    continue
                fit = self._claim_room(step, claim, self._idle.limit(request, limit))
                if fit is None:
                    continue
                self.waiting.admit(request)
                self._enter_batch(step, request, fit)
                self._add_chunk(step, request, fit.num_tokens)
                budget -= fit.num_tokens
                break
            else:
                break
        return budget

    def _claim_room(self, step: Step, claim: Claim, budget: int) -> Fit | None:
        """Preempt as many of its victims as a claim needs; none if all are too few.

        None if it is not to be admitted in this step: there are too few, or what they free comes
        with the end of the step in flight."""
        if not all(self._can_give_way(step, user) for user in claim.slot_users):
            return None
        fit = self._fit_claim(claim, budget)
        num_blocks, has_row = fit.num_lacking, len(self.running) < self._max_num_running
        if num_blocks > 0 or not has_row or claim.slot_users:
            num_blocks -= self._num_blocks_coming
            taken: dict[Request, None] = {}
            for victim in chain(claim.slot_users, claim.victims):
                if num_blocks <= 0 and has_row and len(taken) >= len(claim.slot_users):
                    break
                if victim in taken or not self._can_give_way(step, victim):
                    continue
                taken[victim] = None
                num_blocks -= self.cache.num_sole_blocks(victim.block_table)
                has_row = True
            if num_blocks > 0 or not has_row:
                return None
            for victim in taken:
                self._preempt(step, victim, cause=claim.request)
            fit = self._fit_claim(claim, budget)
        return fit if fit.fits and self._free_rows else None

    @staticmethod
    def _can_give_way(step: Step, victim: Request) -> bool:
        """It did not give way to another just now, and was not admitted just now."""
        return victim.state is RequestState.RUNNING and victim not in step.requests

    def _fit_claim(self, claim: Claim, budget: int) -> Fit:
        request = claim.request
        hit = self.cache.lookup(request.block_table, request.token_ids)
        self._capacity.begin_step(self.running.values())
        num_due = self._capacity.num_blocks_due(request)
        return self._capacity.fit(request, hit, budget, at_once=claim.at_once, num_due=num_due)

    @property
    def _num_blocks_coming(self) -> int:
        """Blocks that will be free once the step in flight is over."""
        return sum(self.cache.num_sole_blocks(r.block_table) for r in self._draining.values())

    def _schedule_running(self, step: Step, order: list[Request], budget: int) -> tuple[int, bool]:
        """Schedule a chunk of each request in ``order``; returns the tokens left of the budget, and
        whether there were enough blocks for all."""
        num_preemptions, num_missing = self.stats.num_preemptions, 0
        step_tokens = self._step_budget.max_num_tokens
        if self._capacity.may_run_short(order, step_tokens, self._lookahead.num_tokens):
            order = self.policy.ranked(order)
        elif self._is_short and self.policy.is_contended:
            order = self.policy.by_service(order)
        self._is_short = False
        order, num_active = self._idle.divide(order)
        turn, num_stages = None, self._num_stages
        if num_stages > 1:
            turn = Turn(order, list(self.in_flight)[1 - num_stages :], num_stages)
        index, block_size, num_lookahead = 0, self.cache.block_size, self._lookahead.num_tokens
        while index < min(num_active, len(order)):
            request = order[index]
            index += 1
            num_planned = len(request.token_ids) + request.num_pending
            if num_planned >= request.token_limit or request.num_drafts_in_flight:
                continue  # Its last permitted token, or drafts of it, are in flight.
            # However long a prefill is, it leaves one token of the budget for each request behind.
            limit = min(self._chunk_limit, budget - (min(num_active, len(order)) - index))
            if (limit := self._idle.limit(request, limit)) <= 0:
                continue
            num_tokens = num_planned - request.num_computed_tokens
            if turn is not None and not turn.takes(request, num_tokens):
                continue
            if num_tokens > 1:
                limit = request.chunk_limit(request.num_computed_tokens, limit)
            if request.images:
                limit = self.pictures.limit(request, request.num_computed_tokens, limit)
                if limit == 0:
                    continue
            if num_tokens > limit:
                num_tokens = limit
                self._is_short = True
            drafts: tuple[int, ...] = ()
            if request.draft_token_ids:
                drafts = fitting_drafts(request, self.cache, limit - num_tokens, num_missing)
                num_tokens += len(drafts)
            end, table = request.num_computed_tokens + num_tokens, request.block_table
            if end + num_lookahead > table.num_logical_blocks * block_size:
                num_logical_blocks = self._lookahead.num_logical_blocks(table, end, num_missing)
                if num_logical_blocks > table.num_logical_blocks:
                    num_fresh = self.cache.num_blocks_to_grow(table, num_logical_blocks)
                    if not self._make_room(step, num_fresh + num_missing, request, order):
                        num_missing += num_fresh
                        continue
                    step.plan.append(request.row, self.cache.grow(table, num_logical_blocks))
            self._add_chunk(step, request, num_tokens, drafts)
            budget -= num_tokens
        # If blocks ran short, newly admitted requests would take what running ones lack.
        return budget, num_missing == 0 and num_preemptions == self.stats.num_preemptions

    def _make_room(
        self, step: Step, num_blocks: int, request: Request, order: list[Request]
    ) -> bool:
        """Preempt requests from the end of ``order`` until ``num_blocks`` are free.

        False if ``request`` gets no chunk in this step: either enough blocks will be free once the
        step in flight is over, or ``request`` itself was the last one to preempt.
        """
        while num_blocks > self.cache.num_free_blocks:
            if num_blocks <= self.cache.num_free_blocks + self._num_blocks_coming:
                return False
            victim = order.pop()
            self._preempt(step, victim, cause=request)
            if victim is request:
                return False
        return True

    def _admit_waiting(self, step: Step, budget: int) -> None:
        """Admit requests from the queue while rows, blocks and budget last."""
        self._capacity.begin_step(self.running.values())
        self.waiting.free_adapter_slots(self.running.values())
        max_num_partial, num_partial = self._max_num_partial_prefills, 0
        if max_num_partial is not None:
            num_partial = sum(not chunk.samples for chunk in step.plan.chunks)
        while budget > 0:
            request = self.waiting.head()
            if request is None or request.num_in_flight > 0:
                return  # It was preempted just now, and its last token is not known yet.
            if not self._free_rows or len(self.running) >= self._max_num_running:
                return
            if self.waiting.adapter_slots.must_wait(request, self.running.values()):
                if not self.waiting.hold_for_adapter_slot(request):
                    return
                continue
            if self._capacity.still_lacking(request) > 0:
                return
            hit = self.cache.lookup(request.block_table, request.token_ids)
            if self.waiting.wait_for_prefix(request, hit):
                if self.waiting.has_too_many_prefix_waits:
                    return
                continue
            if self.pictures.must_wait(request, hit.num_tokens):
                if not self.waiting.hold_for_picture(request):
                    return
                continue
            fit = self._capacity.fit(request, hit, self._idle.limit(request, budget))
            if not fit.fits:
                return
            num_partial += fit.hit.num_tokens + fit.num_tokens < request.num_tokens
            if max_num_partial is not None and num_partial > max_num_partial:
                return
            self._capacity.admit()
            self.waiting.admit(request)
            self._enter_batch(step, request, fit)
            self._add_chunk(step, request, fit.num_tokens)
            budget -= fit.num_tokens

    def _enter_batch(self, step: Step, request: Request, fit: Fit) -> None:
        assert request.num_in_flight == 0, f"{request.request_id} is admitted while in flight"
        request.enter(RequestState.RUNNING)
        request.row = self._free_rows.pop()
        request.num_computed_tokens = fit.hit.num_tokens
        if not request.was_admitted:
            self._account_arrival(request, fit.hit.num_tokens)
        self.running[request.request_id] = request
        table, hit = request.block_table, fit.hit
        self.cache.admit(table, hit, fit.num_slots)
        if self._lookahead.num_tokens:
            self._lookahead.extend(table, fit.num_slots, fit.num_due)
        step.plan.swap_ins += self.cache.swap_in(table, hit)
        step.plan.block_copies += self.cache.block_copies(table, hit)
        step.begin_states(self.cache, request, hit)
        step.plan.admissions.append(
            Admission(
                row=request.row,
                request_id=request.request_id,
                token_ids=list(request.token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                block_ids=self.cache.block_ids(table),
                params=request.params,
                adapter=request.adapter,
                pooling=request.pooling,
                grids=self.pictures.grids(request),
            )
        )

    def _account_arrival(self, request: Request, num_cached: int) -> None:
        """Charge and count a request that leaves the queue for the first time."""
        request.was_admitted = True
        request.num_cached_tokens = num_cached
        if not request.is_idle:
            self.queue.leave(request.fair_key, request.num_prompt_tokens)
        self.policy.charge_prompt(request, 0, num_cached)
        waited_s = request.queue_s = self._clock() - request.arrival_s
        totals = self.tenants.of(request.fair_key)
        totals.cached_tokens += num_cached
        totals.num_admitted += 1
        totals.queue_time_sum_s += waited_s
        self.stats.admit(request.num_prompt_tokens, waited_s)
        if self.cache.enable_prefix_caching:
            self.stats.prefix_cache_queries += request.num_prompt_tokens
            self.stats.prefix_cache_hits += num_cached

    def _add_chunk(
        self, step: Step, request: Request, num_tokens: int, drafts: tuple[int, ...] = ()
    ) -> None:
        """Plan the next ``num_tokens`` of a request, of which the last are ``drafts``."""
        start = request.num_computed_tokens
        end = start + num_tokens
        samples = end - len(drafts) == len(request.token_ids) + request.num_pending
        constrained = samples and request.constrained
        if constrained:
            step.constrained.append(len(step.requests))
        step.plan.chunks.append(
            Chunk(request.row, request.request_id, start, num_tokens, samples, constrained, drafts)
        )
        step.requests.append(request)
        self.pictures.see(step, request, start, end)
        step.take_snapshots(self.cache, request, start, end)
        self._idle.spend(request, num_tokens, len(drafts))
        request.num_computed_tokens = end
        request.num_pending += samples
        request.num_drafts_in_flight = len(drafts)
        step.num_drafts += len(drafts)
        request.num_in_flight += 1
        self.stats.scheduled_tokens += num_tokens
        if start < request.num_prompt_tokens or start < request.num_once_computed:
            self._account_prefill(step, request, start, end)

    def _account_prefill(self, step: Step, request: Request, start: int, end: int) -> None:
        """Charge the prompt tokens that are computed for the first time, count those computed
        again, and tell those who wait for a prefix which blocks the step computes."""
        first_time = max(start, min(request.num_once_computed, end))
        self.stats.recomputed_tokens += first_time - start
        num_charged = min(end, request.num_prompt_tokens) - first_time
        if num_charged > 0:
            self.policy.charge_prompt(request, num_charged, 0)
            self.tenants.of(request.fair_key).computed_tokens += num_charged
        block_size = self.cache.block_size
        keys = request.block_table.keys[start // block_size : end // block_size]
        self.waiting.prefix_waits.expect(keys)
        step.computed_keys += keys

    # ---- processing results ---------------------------------------------------------------------

    def update(self, result: StepResult) -> list[tuple[Request, list[int]]]:
        """Process the results of the oldest step in flight: append tokens, publish the blocks that
        it filled, end requests.

        Returns the new tokens of each request that got some; some of the requests have finished.
        """
        step = self.in_flight.popleft()
        assert step.plan.step_id == result.step_id, "steps are collected out of order"
        self._costs.observe_step(step, self._clock())
        step.keep_logprobs(result)
        new_tokens, block_size = [], self.cache.block_size
        for request, chunk, token_ids in zip(
            step.requests, step.plan.chunks, result.token_ids, strict=True
        ):
            request.num_in_flight -= 1
            request.num_pending -= chunk.samples
            taken: list[int] = []
            reason: FinishReason | None = None
            if token_ids and request.state is not RequestState.FINISHED:
                taken, reason = self._append(request, token_ids)
                new_tokens.append((request, taken))
            num_written = chunk.num_computed_tokens + chunk.num_scheduled_tokens
            if chunk.draft_token_ids:
                tenant = self.tenants.of(request.fair_key)
                num_wrong, num_right = judge_drafts(
                    request, chunk, len(token_ids), len(taken), tenant
                )
                self.stats.drafts.observe(len(chunk.draft_token_ids), num_right)
                num_written -= num_wrong
            # Tokens behind a stop token were computed, but dropped.
            num_written = min(num_written, len(request.token_ids))
            table = request.block_table
            if num_written // block_size > table.num_published:
                self.cache.publish(table, request.token_ids, num_written)
            else:
                table.num_written = num_written
            if reason is not None:
                self._capacity.observe(request)
                self.finish(request, reason)
            elif taken and request.awaits_grant:
                self.waiting.note_grant(request)
            if request.num_in_flight == 0 and request.arrival in self._draining:
                self._release(self._draining.pop(request.arrival))
        step.keep_snapshots(self.cache)
        for request in step.swapped:  # This was the last step that reads their blocks.
            request.num_in_flight -= 1
            self._release(self._draining.pop(request.arrival))
        self.pictures.release(step)
        if step.plan.block_copies:
            self.cache.pool.release(source for source, _, _ in step.plan.block_copies)
            self._capacity.release()
        self.waiting.end_prefix_waits(step.computed_keys)
        return new_tokens

    def _append(
        self, request: Request, token_ids: list[int]
    ) -> tuple[list[int], FinishReason | None]:
        """Append sampled tokens up to a stop; returns those taken, and the finish reason if the
        request ends there."""
        reason: FinishReason | None = None
        if not request.extend(token_ids):
            for count, token_id in enumerate(token_ids, 1):
                reason = request.append(token_id)
                if reason is not None:
                    token_ids = token_ids[:count]
                    break
        self.policy.charge_output(request, len(token_ids))
        self.tenants.of(request.fair_key).generation_tokens += len(token_ids)
        return token_ids, reason

    # ---- invariants -----------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Rows, blocks and references are all accounted for. For tests and idle moments."""
        self.cache.pool.check_integrity()
        self.cache.swap.check_integrity()
        self.cache.check_states(s for step in self.in_flight for _, _, s in step.snapshots)
        holders = [*self.running.values(), *self._draining.values()]
        refs = [0] * self.cache.pool.num_blocks
        for request in holders:
            self.cache.check_table(request.block_table)
            for block_id in self.cache.held_blocks(request.block_table):
                refs[block_id] += 1
        for step in self.in_flight:
            for source, _, _ in step.plan.block_copies:
                refs[source] += 1
        assert all(refs[i] == self.cache.pool.ref_count(i) for i in range(len(refs))), (
            "blocks are referenced by nobody, or not by their holder"
        )
        self.pictures.check_integrity(self.in_flight)
        rows = [request.row for request in holders] + self._free_rows
        assert sorted(rows) == list(range(len(rows))), "a row is lost or held twice"
        for request in self.running.values():
            assert request.state is RequestState.RUNNING
            assert request.num_settled_tokens <= request.num_planned_tokens
            assert request.num_pending <= request.num_in_flight <= len(self.in_flight)
        self.waiting.check_integrity(idle=not self.in_flight)
        assert all(r.num_in_flight for r in self._draining.values()), "drained and not released"
