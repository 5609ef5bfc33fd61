"""Why requests do not run: those that wait to be admitted, in the policy's order or set aside for a
while, and those that may not go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.request import RequestState
from engine.scheduler.adapter_slots import AdapterSlotQueue
from engine.scheduler.prefix_waits import PrefixWaits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from engine.cache.table import PrefixHit
    from engine.messages import Grant
    from engine.request import Request
    from engine.scheduler.claim import Claim
    from engine.scheduler.policy import SchedulingPolicy

QUEUED = (RequestState.WAITING, RequestState.PREEMPTED, RequestState.SWAPPED)
"""The states of requests that wait to be admitted."""
# The most requests that are set aside until a step in flight has computed a block for them; looking
# each of them up takes time in every step.
_MAX_PREFIX_WAITS = 32
# The most requests that are set aside until the next step, and return to the queue then.
_MAX_PICTURE_WAITS = 32


class WaitingQueue:
    """A request that lacks more than a row and blocks is taken out of the policy's order, so that
    those behind it can be admitted, until it has what it lacks:

    * tokens that it may generate, which a grant brings,
    * an adapter slot, which a running request frees,
    * room to encode its picture, which the next step has,
    * a block that a step in flight computes for another request.

    One that is parked is in no order until its reader reads again. Its state (``RequestState``)
    says whether a request waits for its grammar, for the first time, or after a preemption.
    """

    def __init__(self, policy: SchedulingPolicy, max_loras: int) -> None:
        self._policy = policy
        self.parked: set[Request] = set()
        self.ungranted: dict[Request, bool] = {}
        """The unfinished requests, parked ones excluded, that may generate nothing until they are
        granted more; and whether they are out of the policy's order for that. One that ran keeps
        its row and blocks."""
        self.adapter_slots = AdapterSlotQueue(max_loras)
        self.prefix_waits = PrefixWaits()
        self._picture_waits: dict[Request, None] = {}

    def add(self, request: Request) -> None:
        self._policy.enqueue(request)
        self.note_grant(request)

    def discard(self, request: Request) -> None:
        """Take a request out, wherever it waits."""
        if self.ungranted.pop(request, False):
            return
        if request in self.prefix_waits:
            self.prefix_waits.discard(request)
        elif request in self.adapter_slots:
            self.adapter_slots.discard(request)
        elif request in self._picture_waits:
            del self._picture_waits[request]
        else:
            self._policy.dequeue(request)

    def admit(self, request: Request) -> None:
        """Take a request out of the policy's order: it is admitted."""
        self._policy.admit(request)

    def head(self) -> Request | None:
        """The request to admit next. Those before it that lack a grant are set aside."""
        while True:
            request = self._policy.head()
            if request is None or request.num_in_flight > 0 or not request.awaits_grant:
                return request
            self.set_aside(request)

    def set_aside(self, request: Request) -> None:
        """Take a request out of the policy's order until it is granted more tokens."""
        self._policy.dequeue(request)
        self.ungranted[request] = True

    def grant(self, request: Request, grant: Grant) -> None:
        """Raise what a request may generate; it goes on if it waited for that."""
        request.grant(grant)
        self.note_grant(request)

    def note_grant(self, request: Request) -> None:
        """Call it whenever the tokens of a request or its grant have changed."""
        if request in self.parked:
            return
        if request.awaits_grant:
            self.ungranted.setdefault(request, False)
        elif self.ungranted.pop(request, False):
            self._policy.enqueue(request)

    def park(self, request: Request) -> None:
        """Note that a request, which is in no order, may not go on."""
        self.ungranted.pop(request, None)
        self.parked.add(request)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self.ungranted.pop(request, None)
        self.parked.discard(request)

    @property
    def num_paused(self) -> int:
        """Unfinished requests that cannot go on by themselves."""
        return len(self.parked) + len(self.ungranted)

    def hold_for_picture(self, request: Request) -> bool:
        """Set the head aside, whose picture this step has no room to encode; False if too many wait
        for that."""
        if len(self._picture_waits) >= _MAX_PICTURE_WAITS:
            return False
        self._policy.dequeue(request)
        self._picture_waits[request] = None
        return True

    def begin_step(self) -> None:
        """Take back those that waited for this step to encode their pictures."""
        for request in self._picture_waits:
            self._policy.enqueue(request)
        self._picture_waits.clear()

    def hold_for_adapter_slot(self, request: Request) -> bool:
        """Set the head aside, which ``adapter_slots.must_wait``; False if too many wait there."""
        if not self.adapter_slots.hold(request):
            return False
        self._policy.dequeue(request)
        return True

    def free_adapter_slots(self, running: Iterable[Request]) -> None:
        """Take back those that waited for a slot, if the running requests leave one."""
        for request in self.adapter_slots.release(running):
            self._policy.enqueue(request)

    def free_claimants(self) -> bool:
        """Take the oldest of each tenant back that waits for a slot, as it may claim one; whether
        there are any."""
        taken = self.adapter_slots.take_oldest()
        for request in taken:
            self._policy.enqueue(request)
        return bool(taken)

    def lacks_slot(self, claim: Claim, running: Iterable[Request]) -> bool:
        """Whether a claim must wait for an adapter slot. One for room at once takes the place of
        those who wait here, too."""
        if claim.slot_users:
            return False
        if claim.at_once:
            return self.adapter_slots.lacks_slot(claim.request, running)
        return self.adapter_slots.must_wait(claim.request, running)

    def wait_for_prefix(self, request: Request, hit: PrefixHit) -> bool:
        """Set the head aside if a step in flight computes the block that it needs next: then it
        will find it in the cache, and need not compute it again. Returns whether it was set aside.

        The request waits for a step or two; the requests behind it do not.
        """
        keys, index = request.block_table.keys, hit.num_blocks + hit.num_stateless
        if hit.is_swapped or request.block_table.skip_reading:
            return False
        if index >= len(keys) or not self.prefix_waits.expects(keys[index]):
            return False
        self._policy.dequeue(request)
        self.prefix_waits.hold(request, keys[index])
        return True

    @property
    def has_too_many_prefix_waits(self) -> bool:
        return len(self.prefix_waits) > _MAX_PREFIX_WAITS

    def end_prefix_waits(self, computed_keys: Sequence[bytes]) -> None:
        """Take back those that waited for the blocks with these keys: the step is over."""
        for request in self.prefix_waits.release(computed_keys):
            self._policy.enqueue(request)

    def check_integrity(self, *, idle: bool) -> None:
        """Nobody waits for what has come. idle: no step is in flight."""
        assert not idle or not len(self.prefix_waits), "requests wait for a step that is over"
        assert all(request.state is RequestState.PARKED for request in self.parked)
        for request, is_set_aside in self.ungranted.items():
            assert request.awaits_grant, "it may generate, but is not in the queue"
            assert request not in self.parked
            assert not request.finished
            assert request.state in QUEUED or not is_set_aside
