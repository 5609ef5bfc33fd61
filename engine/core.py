"""The engine's loop: requests in, tokens out. Everything else in the engine serves ``step``."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

from engine.cache.manager import create_cache_manager
from engine.constraints import Constraints, Ending
from engine.errors import AdapterLoadError, AdapterUnloaded, InvalidRequest, QueueFull
from engine.messages import RequestOutput, Stats
from engine.request import Request, RequestState
from engine.request_checks import RequestChecks
from engine.scheduler.drafts import Lookahead
from engine.scheduler.policy import create_policy
from engine.scheduler.scheduler import Scheduler
from engine.spec.speculator import Speculator
from engine.vision import with_pixels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from engine.adapters import Adapters, OnLoaded
    from engine.config import EngineConfig
    from engine.messages import AdapterRef, GenerateRequest, Grant
    from engine.scheduler.plan import Runner
    from engine.scheduler.step import Step
    from engine.spec.base import Proposer
    from grammar.compiler import GrammarCompiler

# How long a step with nothing to compute waits for a grammar or an adapter, so that the loop does
# not spin.
_IDLE_WAIT_S = 0.002


class EngineCore:
    """Drives a runner. Torch-free, single-threaded, and without any I/O of its own.

    With ``async_scheduling`` (overlap) it plans step N+1 while N runs on the device. ``proposer``
    drafts in place of the one the config names.
    No single request can make ``step`` raise: a request that cannot go on ends with an error
    output. What does raise comes from the runner, and means that the engine is lost.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        max_model_len: int,
        eos_token_ids: AbstractSet[int] = frozenset(),
        grammar: GrammarCompiler | None = None,
        adapters: Adapters | None = None,
        proposer: Proposer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._adapters = adapters
        self._eos_token_ids = frozenset(eos_token_ids)
        self._overlap = bool(config.async_scheduling)
        self._most_left = config.pipeline_parallel_size - 1 + self._overlap
        """Steps that stay in flight when ``step`` returns."""
        self._clock = clock
        self._cache = create_cache_manager(
            config, runner.num_blocks, runner.num_swap_blocks, runner.layer_groups
        )
        self._checks = RequestChecks(
            vocab_size=runner.vocab_size,
            max_model_len=max_model_len,
            max_cached_tokens=self._cache.max_num_tokens,
            max_logprobs=config.max_logprobs,
            pools=runner.pooling is not None,
            vision=runner.vision,
        )
        self._lookahead = Lookahead(
            self._cache, runner.num_lookahead_tokens, self._checks.max_total_tokens
        )
        self.scheduler = Scheduler(
            config,
            self._cache,
            create_policy(
                config,
                self._prefix_match,
                self._cache.pool.num_blocks,
                len(self._cache.windows),
            ),
            clock,
            swap_s_per_block=runner.swap_s_per_block,
            lookahead=self._lookahead,
            vision=runner.vision,
        )
        self._constraints = Constraints(grammar, runner.vocab_size)
        self._speculator = Speculator(
            config.speculative_config,
            self._constraints,
            runner,
            proposer,
            clock,
            # With overlap, waiting for the last token would cost more than forced drafts save.
            drafts_forced=grammar is not None and not self._overlap,
        )
        self._requests: dict[str, Request] = {}
        """All unfinished requests, by id."""
        self._outputs: list[RequestOutput] = []
        """What the next ``step`` returns."""
        self._was_busy = False
        """Whether there was still work when the last step returned. If so, the time since then
        counts as a part of the next step."""
        self._arrivals = count()
        self._moved_arrivals = count(-(1 << 62))
        """Of requests that were admitted elsewhere: before all that came here, as preempted ones
        are before those that came later. With fair shares it orders the requests of one tenant, so
        it is no way past others."""

    @property
    def has_unfinished(self) -> bool:
        """Whether ``step`` has something to do or to say."""
        reading = self._adapters is not None and self._adapters.is_reading
        in_flight = self.scheduler.in_flight
        return bool(self._num_active or self._outputs or in_flight or reading)

    @property
    def _num_active(self) -> int:
        """Unfinished requests that can go on by themselves."""
        return len(self._requests) - self.scheduler.waiting.num_paused

    def _prefix_match(self, request: Request) -> int:
        return self._cache.num_matching_tokens(request.block_table, request.token_ids)

    # ---- requests come and go -------------------------------------------------------------------

    def add_request(self, message: GenerateRequest) -> None:
        """Take a request. One that can never run is answered by the next ``step``.

        Raises ``InvalidRequest`` only for the id of a request that is still running, because an
        answer would reach that one's reader.
        """
        if message.request_id in self._requests or self._waits_for_adapter(message.request_id):
            raise InvalidRequest(f"request_id {message.request_id!r} is in use")
        digest: str | None = ""  # None: the adapter is being read, and the request waits there.
        try:
            self._checks.check(message)
            message = with_pixels(message)
            if message.adapter is not None:
                digest = self._adapters_for(message.adapter).admit(message)
        except (InvalidRequest, AdapterLoadError) as error:
            self._refuse(message, error, "invalid_request")
        except AdapterUnloaded as error:
            self._refuse(message, error, "adapter_unloaded")
        else:
            if digest is not None:
                self._begin(message, digest)

    def _begin(self, message: GenerateRequest, adapter_digest: str) -> None:
        """Queue a request whose adapter, if any, is loaded. adapter_digest: of its content."""
        max_tokens = message.params.max_tokens
        is_moved = message.progress is not None
        limit, pooling = self._checks.max_total_tokens, self._runner.pooling
        if pooling is not None:
            max_tokens = 1  # It ends where another request would get its first token.
        request = Request(
            message,
            adapter_digest=adapter_digest,
            arrival=next(self._moved_arrivals if is_moved else self._arrivals),
            arrival_s=self._clock(),
            max_total_tokens=(
                limit if max_tokens is None else len(message.prompt_token_ids) + max_tokens
            ),
            eos_token_ids=self._eos_token_ids,
            is_whole=pooling is not None and pooling.is_encoder,
        )
        request.block_table.ceilings = self._cache.pool.ceilings_of(message.max_cached_blocks)
        try:
            self.scheduler.register(request, is_moved=is_moved)
        except QueueFull as error:
            self._release_adapter(request)
            self._refuse(message, error, "queue_full")
            return
        self._requests[request.request_id] = request
        if request.constrained:
            self._begin_constrained(request)
        else:
            self.scheduler.add(request)

    def _refuse(self, message: GenerateRequest, error: Exception, code: str) -> None:
        self._outputs.append(
            RequestOutput(message.request_id, [], "error", error=str(error), error_code=code)
        )

    def _begin_constrained(self, request: Request) -> None:
        try:
            self._constraints.begin(request)
        except InvalidRequest as error:
            self.scheduler.finish(request, "error")
            self._report(request, [], error=str(error), error_code="invalid_request")

    def load_adapter(self, adapter: AdapterRef, on_done: OnLoaded) -> None:
        """Read and check an adapter ahead of requests. ``on_done`` is called with the outcome, here
        or in a later ``step``."""
        try:
            self._adapters_for(adapter).load(adapter, on_done)
        except AdapterLoadError as error:
            on_done(error)

    def unload_adapter(self, name: str) -> None:
        """Refuse new requests for it; running ones go on to their end."""
        if self._adapters is not None:
            self._adapters.unload(name)

    def _adapters_for(self, adapter: AdapterRef) -> Adapters:
        """Raises ``AdapterLoadError`` if the engine runs without adapters."""
        if self._adapters is None:
            raise AdapterLoadError(
                f"adapter {adapter.name!r} cannot be loaded: enable_lora is not set"
            )
        return self._adapters

    def _waits_for_adapter(self, request_id: str) -> bool:
        """Whether a request is held until its adapter has been read."""
        return self._adapters is not None and self._adapters.holds(request_id)

    def _release_adapter(self, request: Request) -> None:
        if request.adapter and self._adapters is not None:
            self._adapters.release(request.adapter)

    def abort(self, request_ids: Iterable[str], *, if_waiting: bool = False) -> None:
        """End requests, whatever their state; each gets a last output. Unknown ids are ignored.
        ``if_waiting``: only those that wait in the queue and have not run."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if if_waiting and (request is None or request.state is not RequestState.WAITING):
                continue
            if request is not None:
                self.scheduler.finish(request, "abort")
                self._report(request, [])
            elif self._adapters is not None and self._adapters.holds(request_id):
                self._adapters.discard(request_id)
                self._outputs.append(RequestOutput(request_id, [], "abort"))

    def park(self, request_ids: Iterable[str]) -> None:
        """Set aside requests that have begun to generate: they hold no row and no blocks until
        ``unpark``, and keep their place. Unknown ids are ignored, and so are requests that have not
        begun."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self.scheduler.park(request)

    def unpark(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None and request.state is RequestState.PARKED:
                self.scheduler.unpark(request)

    def grant(self, grants: Iterable[Grant]) -> None:
        """Raise what requests may generate in total. Unknown ids are ignored."""
        for grant in grants:
            request = self._requests.get(grant.request_id)
            if request is None:
                if self._adapters is not None:
                    self._adapters.grant(grant)
                continue
            self.scheduler.waiting.grant(request, grant)
            if request.num_tokens >= request.max_total_tokens:
                self.scheduler.finish(request, "length")
                self._report(request, [])

    # ---- a step ---------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Plan a step, launch it, collect the results that are due; returns what is new.

        Without overlap, the results are those of this step. With overlap, they are those of the
        step before, collected while this one computes; a model in stages computes as many more at
        the same time. The order (forward, collect the step before,
        grammar masks, sample) lets a grammar see every token before the next one is sampled, and
        computes its masks beside the forward pass. Only drafts have to wait until the step before
        is over, because they continue what it sampled.
        """
        self._queue_loaded()
        self._queue_compiled()
        self._prepare_drafts()
        keeps_features = self._speculator.keeps_features
        self._lookahead.expect_drafts(expected=keeps_features)
        step = self.scheduler.schedule()
        if step is not None:
            step.plan.keeps_features = keeps_features
            self._runner.forward(step.plan)
            if not step.constrained:
                step.launched = self._runner.sample(None)
            step.noted = self._speculator.planned(step)
        if step is None:
            self._collect_down_to(len(self.scheduler.in_flight) - 1)
        else:
            self._collect_down_to(max(1, self._most_left))
            if step.constrained:
                self._sample_constrained(step)
            self._collect_down_to(self._most_left)
        self._speculator.learn(self._requests)  # while the device works
        outputs, self._outputs = self._outputs, []
        self._was_busy = self.has_unfinished
        return outputs

    def _queue_loaded(self) -> None:
        """Queue the requests whose adapter has been read."""
        if self._adapters is None or not self._adapters.is_reading:
            return
        idle = self._num_active == 0 and not self._outputs
        wait_s = _IDLE_WAIT_S if idle else 0.0
        for message, grants, outcome in self._adapters.released(wait_s=wait_s):
            if isinstance(outcome, str):
                self._begin(message, outcome)
                self.grant(grants)
            else:
                # The reason is in the log, for the operator; clients do not get it.
                error = AdapterLoadError("the adapter's files cannot be used at the moment")
                self._refuse(message, error, "adapter_unavailable")

    def _queue_compiled(self) -> None:
        """Queue the requests whose grammar is ready."""
        num_others = self._num_active - self._constraints.num_compiling
        idle = num_others == 0 and not self._outputs
        wait_s = _IDLE_WAIT_S if idle else 0.0
        for request, ending in self._constraints.compiled(wait_s=wait_s):
            if ending is None:
                self.scheduler.add(request)
            else:
                self._end(ending, [])

    def _prepare_drafts(self) -> None:
        """Draft for the next step. Where drafts are likely, this first waits for the step in
        flight."""
        if not self._speculator.begin(len(self.scheduler.running), goes_on=self._was_busy):
            return
        running = self.scheduler.running.values()
        checks_drafts = any(step.num_drafts for step in self.scheduler.in_flight)
        if checks_drafts or (self.scheduler.in_flight and self._speculator.foresees(running)):
            self._collect_down_to(0)
        # While a step is in flight the last tokens are unknown, so nothing can be drafted.
        self._speculator.propose(() if self.scheduler.in_flight else running)

    def _collect_down_to(self, num_steps: int) -> None:
        """Leave so many in flight, or fewer."""
        while len(self.scheduler.in_flight) > max(0, num_steps):
            self._collect()

    def _collect(self) -> None:
        """Wait for the oldest step in flight, and process its results."""
        in_flight = self.scheduler.in_flight
        step = in_flight[0]
        assert step.launched is not None, "a step is due that was never sampled"
        result = step.launched.collect()
        new_tokens = self.scheduler.update(result)
        self._speculator.collected(step.noted, result)
        for request in step.keep_pooled(result):
            self.scheduler.finish(request, "stop")
            self._report(request, [])
        for request, token_ids in new_tokens:
            if request.constrained and not request.finished:
                ending = self._constraints.accept(request, token_ids)
                if ending is not None:
                    self._end(ending, token_ids)
                    continue
            self._report(request, token_ids)

    def _sample_constrained(self, step: Step) -> None:
        """Sample a step with grammar masks: the grammars have seen every token before it."""
        mask, endings = self._constraints.mask(
            (index, step.requests[index], step.plan.chunks[index].draft_token_ids)
            for index in step.constrained
        )
        step.launched = self._runner.sample(mask)
        for ending in endings:
            self._end(ending, [])

    def _end(self, ending: Ending, token_ids: list[int]) -> None:
        """End a request because of its grammar. After an error its last tokens are withheld."""
        self.scheduler.finish(ending.request, ending.reason)
        self._report(
            ending.request,
            [] if ending.error else token_ids,
            error=ending.error,
            error_code=ending.error_code,
        )

    def _report(
        self,
        request: Request,
        token_ids: list[int],
        *,
        error: str | None = None,
        error_code: str | None = None,
    ) -> None:
        """Add new tokens of a request, or its end, to the outputs; forget it if it has ended."""
        self.scheduler.stats.generation_tokens += len(token_ids)
        logprobs = request.logprobs
        self._outputs.append(
            RequestOutput(  # By position: this runs for every request in every step.
                request.request_id,
                token_ids,
                request.finish_reason,
                request.stop_reason,
                request.num_cached_tokens,
                error,
                error_code,
                None if logprobs is None else logprobs.take(len(token_ids)),
                None if logprobs is None else logprobs.take_prompt(),
                request.num_draft_tokens,
                request.num_accepted_tokens,
                self._constraints.unenforced(request) if request.constrained else None,
                request.queue_s,
                request.pooled,
            )
        )
        request.queue_s = request.pooled = None
        if request.finished:
            del self._requests[request.request_id]
            self._release_adapter(request)
            self._speculator.drop(request)
            if request.constrained:
                self._constraints.drop(request)

    # ---- inspection -----------------------------------------------------------------------------

    def stats(self) -> Stats:
        """A snapshot of the engine's gauges and counters, for the metrics."""
        scheduler, pool, totals = self.scheduler, self._cache.pool, self.scheduler.stats
        swap, adapters = self._cache.swap, self._adapters
        num_held = 0 if adapters is None else adapters.num_held
        num_parked, ungranted = scheduler.waiting.num_paused, scheduler.waiting.ungranted
        num_running = sum(request not in ungranted for request in scheduler.running.values())
        return Stats(
            num_running=num_running,
            num_waiting=len(self._requests) - num_running - num_parked + num_held,
            num_parked=num_parked,
            num_swapped=swap.num_holders,
            num_queued_reqs=scheduler.queue.num_reqs,
            num_queued_tokens=scheduler.queue.num_tokens,
            num_total_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_cached_blocks=len(pool.index),
            num_total_swap_blocks=swap.num_blocks,
            num_free_swap_blocks=swap.num_free,
            swapped_out_blocks=swap.num_blocks_out,
            swapped_in_blocks=swap.num_blocks_in,
            num_steps=totals.num_steps,
            num_preemptions=totals.num_preemptions,
            scheduled_tokens=totals.scheduled_tokens,
            recomputed_tokens=totals.recomputed_tokens,
            prompt_tokens=totals.prompt_tokens,
            generation_tokens=totals.generation_tokens,
            num_loaded_adapters=0 if adapters is None else adapters.num_in_memory,
            num_adapter_reads=0 if adapters is None else adapters.num_reads,
            num_adapter_swaps=0 if adapters is None else adapters.num_swaps,
            prefix_cache_queries=totals.prefix_cache_queries,
            prefix_cache_hits=totals.prefix_cache_hits,
            prefix_cache_evictions=pool.num_evictions,
            queue_time_counts=list(totals.queue_time_counts),
            queue_time_sum_s=totals.queue_time_sum_s,
            fairness_gap=scheduler.policy.spread(),
            spec_decode_num_drafts=totals.drafts.num_drafts,
            spec_decode_num_draft_tokens=totals.drafts.num_draft_tokens,
            spec_decode_num_accepted_tokens=totals.drafts.num_accepted_tokens,
            spec_decode_num_accepted_tokens_per_pos=totals.drafts.num_accepted_tokens_per_pos,
            tenants=scheduler.tenants.stats(scheduler.running.values(), scheduler.queue.by_tenant),
        )

    def check_integrity(self) -> None:
        """Assert that everything held is accounted for, and that an idle engine holds nothing. For
        tests."""
        self.scheduler.check_integrity()
        states = [request.state for request in self._requests.values()]
        assert states.count(RequestState.SWAPPED) == self._cache.swap.num_holders
        waiting = self.scheduler.waiting
        assert states.count(RequestState.PARKED) == len(waiting.parked)
        assert waiting.ungranted.keys() == {
            request
            for request in self._requests.values()
            if request.awaits_grant and request not in waiting.parked
        }
        if not self._requests and not self.has_unfinished:
            assert self._cache.num_free_blocks == self._cache.pool.num_blocks
            assert self.scheduler.pictures.pool.num_free == self.scheduler.pictures.pool.num_blocks
            assert not self.scheduler.running
            assert len(self.scheduler.policy) == 0
            assert self.scheduler.queue.num_reqs == self.scheduler.queue.num_tokens == 0
            assert not waiting.num_paused
            assert self._constraints.is_idle
            assert self._adapters is None or self._adapters.num_users == 0
            assert self._cache.swap.num_free == self._cache.swap.num_blocks
