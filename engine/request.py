"""One generation inside the engine: what was asked for, which tokens are known, how far it is
computed."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING

from engine.cache.table import BlockTable
from engine.logprobs import Logprobs
from engine.messages import IDLE_PRIORITY

if TYPE_CHECKING:
    from engine.messages import FinishReason, GenerateRequest, Grant, Image, Progress
    from engine.pooling import PoolingParams
    from engine.sampling_params import SamplingParams


class RequestState(enum.Enum):
    WAITING_FOR_GRAMMAR = "waiting_for_grammar"  #: Its grammar is being compiled.
    WAITING = "waiting"  #: In the queue, never ran.
    RUNNING = "running"  #: Has a row and blocks.
    PREEMPTED = "preempted"  #: Back in the queue; its blocks were taken from it.
    SWAPPED = "swapped"  #: Likewise, but host memory keeps what it had computed.
    PARKED = "parked"  #: Set aside until its reader reads again; holds no row and no blocks.
    FINISHED = "finished"  #: ``finish_reason`` says why. Blocks may wait for a step in flight.


_NEXT_STATES = {
    RequestState.WAITING_FOR_GRAMMAR: {RequestState.WAITING, RequestState.FINISHED},
    RequestState.WAITING: {RequestState.RUNNING, RequestState.FINISHED},
    RequestState.RUNNING: {
        RequestState.PREEMPTED,
        RequestState.SWAPPED,
        RequestState.PARKED,
        RequestState.FINISHED,
    },
    RequestState.PREEMPTED: {RequestState.RUNNING, RequestState.PARKED, RequestState.FINISHED},
    RequestState.SWAPPED: {RequestState.RUNNING, RequestState.PARKED, RequestState.FINISHED},
    RequestState.PARKED: {RequestState.PREEMPTED, RequestState.FINISHED},
    RequestState.FINISHED: set[RequestState](),
}


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """The scheduler's record of a request.

    Token positions, as half-open regions of one line::

        [0, num_prompt_tokens)            the prompt
        [num_prompt_tokens, num_tokens)   generated, and seen by the host
        [num_tokens, num_planned_tokens)  sampled by a step in flight: on the device, not yet seen
        [0, num_computed_tokens)          scheduled up to here: written to the cache, or about to be

    The last ``num_drafts_in_flight`` of the scheduled ones are drafts of tokens that are not known
    yet; the update for their step takes back those that were wrong.
    """

    message: InitVar[GenerateRequest]
    _: KW_ONLY
    arrival: int
    """Unique and ascending: a request's place among its equals, kept through preemptions."""
    arrival_s: float
    max_total_tokens: int
    """Limit of prompt and output together, after which the request ends with ``length``."""
    eos_token_ids: frozenset[int]
    """Empty where the request ignores EOS."""
    is_whole: bool = False
    """Its tokens must be computed in one step, because each sees those after it."""
    adapter_digest: str = ""
    """Digest of the content of the message's adapter; empty without one."""

    request_id: str = field(init=False)
    params: SamplingParams = field(init=False)
    pooling: PoolingParams | None = field(init=False)
    constrained: bool = field(init=False)
    adapter: str = field(init=False)
    fair_key: str = field(init=False)
    weight: float = field(init=False)
    priority: int = field(init=False)
    is_idle: bool = field(init=False)
    """Whether it runs only when nobody else wants the engine."""
    stop_token_ids: frozenset[int] = field(init=False)
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    prediction_token_ids: list[int] = field(init=False)
    token_limit: int = field(init=False)
    """Tokens it may have for now: ``max_total_tokens``, or the end of what has been granted."""
    images: list[Image] = field(init=False)
    logprobs: Logprobs | None = field(init=False)
    block_table: BlockTable = field(init=False)

    state: RequestState = field(init=False)
    is_new: bool = True
    """It has not been in the queue yet."""
    was_admitted: bool = False
    """It was admitted at least once, here or by the engine that it was moved from, and so no longer
    counts as queued."""
    queue_s: float | None = None
    """Seconds from its arrival to its first admission, until an output has told them. None after a
    move."""
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    row: int = -1
    num_computed_tokens: int = 0
    num_pending: int = 0
    """Tokens that steps in flight will sample."""
    num_in_flight: int = 0
    """Steps in flight that read or write its blocks; copying them out is reading."""
    num_cached_tokens: int = 0
    """Prompt tokens the prefix cache served at the first admission."""
    num_once_computed: int = 0
    """Tokens computed before the last preemption: computing them again is its price."""
    draft_token_ids: list[int] = field(default_factory=list)
    """Drafts of what follows the known tokens, for the next step to check."""
    num_drafts_in_flight: int = 0
    num_draft_tokens: int = 0
    """Drafts checked so far."""
    num_accepted_tokens: int = 0
    """Of these, the right ones: part of the output."""
    pooled: bytes | None = None
    """The result of a request that pools, until an output has told it."""

    def __post_init__(self, message: GenerateRequest) -> None:
        params = self.params = message.params
        self.pooling = message.pooling
        self.request_id = message.request_id
        self.fair_key = message.fair_key
        self.weight = message.weight
        self.priority = message.priority
        self.is_idle = message.priority >= IDLE_PRIORITY
        self.adapter = "" if message.adapter is None else message.adapter.name
        if params.ignore_eos:
            self.eos_token_ids = frozenset()
        self.stop_token_ids = self.eos_token_ids.union(params.stop_token_ids)
        self.token_ids = list(message.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.prediction_token_ids = message.prediction_token_ids
        if message.progress is not None:
            self._go_on_after(message.progress)
        self.token_limit = self.max_total_tokens
        if message.num_granted_tokens is not None:
            granted_total = self.num_prompt_tokens + message.num_granted_tokens
            self.token_limit = min(self.max_total_tokens, granted_total)
        self.constrained = params.structured_outputs is not None
        self.state = RequestState.WAITING_FOR_GRAMMAR if self.constrained else RequestState.WAITING
        self.logprobs = Logprobs.asked_for(
            params, self.num_prompt_tokens, has_begun=self.num_generated_tokens > 0
        )
        region = {"salt": message.cache_salt}
        if self.adapter_digest:
            region["adapter"] = self.adapter_digest
        # An adapter's KV differs from the base model's, so public blocks are never shared with it.
        num_public_tokens = 0 if self.adapter_digest else message.num_public_tokens
        self.images = message.images
        pictures = [(i.offset, i.offset + i.num_tokens, i.digest) for i in message.images]
        self.block_table = BlockTable(
            region, message.fair_key, num_public_tokens, message.group, pictures
        )
        self.block_table.skip_reading = self.lacks_prompt_logprobs

    def _go_on_after(self, progress: Progress) -> None:
        """Take up what another engine has done, as if it had been preempted there."""
        self.token_ids += progress.token_ids
        self.was_admitted = bool(progress.token_ids)
        self.num_once_computed = len(self.token_ids) - 1 if self.was_admitted else 0
        self.num_cached_tokens = progress.num_cached_tokens
        self.num_draft_tokens = progress.num_draft_tokens
        self.num_accepted_tokens = progress.num_accepted_tokens

    def chunk_limit(self, start: int, limit: int) -> int:
        """How many tokens from ``start`` on, at most ``limit``, a chunk may compute: 0 where it
        must compute all of them and ``limit`` is less."""
        return 0 if self.is_whole and start + limit < len(self.token_ids) else limit

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_planned_tokens(self) -> int:
        return len(self.token_ids) + self.num_pending

    @property
    def num_settled_tokens(self) -> int:
        """Computed tokens that are final: all but drafts in flight, which may be rejected."""
        return self.num_computed_tokens - self.num_drafts_in_flight

    @property
    def may_give_way(self) -> bool:
        """Whether it got further than it was when it last gave way, or cannot before a grant."""
        return self.awaits_grant or self.num_settled_tokens > self.num_once_computed

    @property
    def draft_room(self) -> int:
        """Drafts that the next step can check: none unless it has only the last token to compute,
        and never so many that the request could outgrow its limit."""
        if self.num_pending or self.num_computed_tokens != len(self.token_ids) - 1:
            return 0
        return max(0, self.token_limit - len(self.token_ids) - 1)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def finished(self) -> bool:
        return self.state is RequestState.FINISHED

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether prompt log-probabilities were asked for and are not complete yet."""
        return self.logprobs is not None and not self.logprobs.has_prompt

    @property
    def awaits_grant(self) -> bool:
        """Whether it has used up its grant, and must wait for the next."""
        return len(self.token_ids) >= self.token_limit

    def grant(self, grant: Grant) -> None:
        """Raise the limit to what is granted; the last grant also makes it the final limit."""
        granted_total = self.num_prompt_tokens + grant.num_tokens
        self.token_limit = max(self.token_limit, min(granted_total, self.max_total_tokens))
        if grant.is_last:
            self.max_total_tokens = self.token_limit

    def enter(self, state: RequestState) -> None:
        """The only way to change the state."""
        assert state in _NEXT_STATES[self.state], (
            f"{self.request_id}: {self.state.name} cannot become {state.name}"
        )
        self.state = state

    def finish(self, reason: FinishReason) -> None:
        self.enter(RequestState.FINISHED)
        self.finish_reason = reason

    def extend(self, token_ids: list[int]) -> bool:
        """Take several sampled tokens at once; False, taking none, if one of them might end the
        request."""
        if len(self.token_ids) + len(token_ids) >= self.max_total_tokens:
            return False
        if not self.stop_token_ids.isdisjoint(token_ids):
            return False
        self.token_ids += token_ids
        return True

    def append(self, token_id: int) -> FinishReason | None:
        """Take a sampled token; returns the finish reason if the request ends with it."""
        self.token_ids.append(token_id)
        num_tokens = len(self.token_ids)
        if (
            token_id in self.stop_token_ids
            and num_tokens - self.num_prompt_tokens >= self.params.min_tokens
        ):
            # Clients learn which of their own stop tokens it was, but not of EOS.
            self.stop_reason = None if token_id in self.eos_token_ids else token_id
            return "stop"
        return "length" if num_tokens >= self.max_total_tokens else None
