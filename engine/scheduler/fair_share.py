"""Equal service for every tenant in proportion to its weight, whatever its request rate.

Virtual token counters after Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024):
each tenant's counter grows by the cost of its work divided by its weight, and the tenant with the
least counter is admitted next. Where the paper charges a whole prompt at admission, a chunk is
charged when it is scheduled; so the bound on the difference between two tenants shrinks with it.

On top, as in Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (2025): among tenants that
are no more than a quantum above the least counter (that have deficit left, in the paper's words),
the request with the longest cached prefix goes first.

The paper never preempts, so a newcomer waits for a full cache or a full batch as long as those who
filled it like. Here ``holdings.py`` says which tenant gives way to which.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from engine.scheduler.aging import aged_priority, outranked
from engine.scheduler.claim import Claim
from engine.scheduler.heap import RequestHeap
from engine.scheduler.holdings import Holdings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from engine.config import EngineConfig
    from engine.request import Request

# How far the search for a cached prefix looks: tenants, and requests of each.
_MAX_TENANTS_COMPARED = 4
_MAX_REQUESTS_COMPARED = 4
# Tenants whose requests may displace others in one step: so many of the least served, and so many
# of all in turn. Those served least may wait for long because their requests are large.
_MAX_CLAIMANTS = 16
# Oldest requests of a tenant that are looked up at once: the next few searches find them there.
_NUM_LOOKED_UP = 16
# How often a tenant's oldest request may be overtaken by another of its own with a longer match.
_MAX_OVERTAKES = 8
# Accounts and classes kept before the first look for superfluous ones.
_MIN_ACCOUNTS_TO_PRUNE = 1024
_MAX_IDLE_CLASSES = 64


class Account:
    """What one tenant waits for, runs and has been charged inside one priority class."""

    __slots__ = ("_oldest", "counter", "num_overtakes", "num_running", "waiting")

    def __init__(self, counter: float) -> None:
        self.counter = counter
        """Service received: cost units divided by weight."""
        self.waiting = RequestHeap()
        self.num_running = 0
        self.num_overtakes = 0
        self._oldest: list[Request] = []
        """The first of ``waiting``, as far as they are known."""

    @property
    def is_waiting(self) -> bool:
        return len(self.waiting) > 0

    @property
    def is_active(self) -> bool:
        """Whether it waits for anything or runs anything. One that does neither earns no credit."""
        return self.num_running > 0 or len(self.waiting) > 0

    def push(self, request: Request) -> None:
        self.waiting.push(request.arrival, request)
        if self._oldest and request.arrival < self._oldest[-1].arrival:
            self._oldest = []

    def remove(self, request: Request) -> None:
        overtakes = self.waiting.peek() is not request
        self.num_overtakes = self.num_overtakes + 1 if overtakes else 0
        self.waiting.remove(request)
        if request in self._oldest:
            self._oldest.remove(request)

    def candidates(self) -> list[Request]:
        """The requests of this account that may go next, the oldest first."""
        count = 1 if self.num_overtakes >= _MAX_OVERTAKES else _MAX_REQUESTS_COMPARED
        if len(self._oldest) < min(count, len(self.waiting)):
            self._oldest = self.waiting.first(_NUM_LOOKED_UP)
        return self._oldest[:count]


class AccountHeap:
    """The accounts that ``belong``, by counter.

    Counters only grow, so an entry may hold an old one: it is raised when it surfaces. An account
    that does not belong any more is dropped then.
    """

    def __init__(self, belongs: Callable[[Account], bool]) -> None:
        self._belongs = belongs
        self._heap: list[tuple[float, int, Account]] = []
        self._members: OrderedDict[Account, None] = OrderedDict()
        self._num_pushed = 0

    def push(self, account: Account) -> None:
        if account not in self._members:
            self._members[account] = None
            self._num_pushed += 1
            heapq.heappush(self._heap, (account.counter, self._num_pushed, account))

    def least(self) -> Account | None:
        """The account with the least counter."""
        while self._heap:
            counter, order, account = self._heap[0]
            if not self._belongs(account):
                heapq.heappop(self._heap)
                del self._members[account]
            elif counter < account.counter:
                heapq.heapreplace(self._heap, (account.counter, order, account))
            else:
                return account
        return None

    def first(self, count: int, quantum: float = float("inf")) -> list[Account]:
        """Up to ``count`` accounts at most ``quantum`` above the least, the least first."""
        found: list[Account] = []
        taken: list[tuple[float, int, Account]] = []
        while len(found) < count:
            account = self.least()
            if account is None or (found and account.counter > found[0].counter + quantum):
                break
            found.append(account)
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return found

    def in_turn(self, count: int) -> list[Account]:
        """Up to ``count`` accounts, others with each call until all had their turn."""
        found = []
        for _ in range(min(count, len(self._members))):
            account = next(iter(self._members))
            self._members.move_to_end(account)
            if self._belongs(account):
                found.append(account)
        return found

    def spread(self) -> float:
        """The largest difference between two counters."""
        counters = [account.counter for account in self._members if self._belongs(account)]
        return max(counters) - min(counters) if counters else 0.0


class PriorityClass:
    """The accounts of one priority class."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.waiting = AccountHeap(lambda account: account.is_waiting)
        self._active = AccountHeap(lambda account: account.is_active)
        self._last_to_leave: Account | None = None
        self._prune_at = _MIN_ACCOUNTS_TO_PRUNE

    @property
    def is_idle(self) -> bool:
        return self._active.least() is None

    def account(self, fair_key: str) -> Account:
        account = self.accounts.get(fair_key)
        if account is None:
            account = self.accounts[fair_key] = Account(self._floor())
        return account

    def enqueue(self, request: Request) -> None:
        account = self.account(request.fair_key)
        if not account.is_waiting and request.is_new:
            # The paper's lift: a tenant earns no credit while it asks for nothing.
            account.counter = max(account.counter, self._floor(account))
        account.push(request)
        self.waiting.push(account)
        self._active.push(account)

    def dequeue(self, request: Request) -> None:
        account = self.accounts[request.fair_key]
        account.remove(request)
        self._note_leaving(account)

    def admit(self, request: Request) -> None:
        account = self.accounts[request.fair_key]
        account.num_running += 1
        account.remove(request)

    def leave(self, request: Request) -> None:
        account = self.accounts[request.fair_key]
        account.num_running -= 1
        self._note_leaving(account)

    def _note_leaving(self, account: Account) -> None:
        if not account.is_active:
            self._last_to_leave = account
            self._prune()

    def _floor(self, joins: Account | None = None) -> float:
        """The counter to which a tenant that joins the queue is lifted: the least of those who
        wait, or else of the others who run; so it is above nobody who competes with it."""
        least = self.waiting.least()
        if least is not None:
            return least.counter
        for account in self._active.first(2):
            if account is not joins:
                return account.counter
        return self._last_to_leave.counter if self._last_to_leave else 0.0

    def _prune(self) -> None:
        """Forget accounts that would be lifted anyway on joining the queue: nothing is lost with
        them."""
        if len(self.accounts) < self._prune_at:
            return
        floor = self._floor()
        self.accounts = {
            fair_key: account
            for fair_key, account in self.accounts.items()
            if account.is_active or account is self._last_to_leave or account.counter > floor
        }
        self._prune_at = max(_MIN_ACCOUNTS_TO_PRUNE, 2 * len(self.accounts))


class FairSharePolicy:
    """Fair between tenants inside a priority class. A more important class goes first.

    A request can always ask for a less important class, so a class must not be a way past other
    tenants: a request that has waited long enough for the next class is moved there, and waits in
    its tenant's account like its other requests. It does not go before everybody, as it does under
    ``PriorityPolicy``.
    """

    def __init__(
        self,
        config: EngineConfig,
        prefix_match: Callable[[Request], int],
        num_blocks: int,
        num_groups: int = 1,
    ) -> None:
        self._input_cost = config.fair_share_input_cost
        self._output_cost = config.fair_share_output_cost
        self._cached_cost = config.fair_share_cached_cost
        self._quantum = config.fair_share_quantum
        self._aging_s = config.priority_aging_s
        self._block_size = config.block_size
        self._num_rows = config.num_seqs
        self._max_loras = config.max_loras
        self._num_blocks = num_blocks
        self._num_groups = num_groups
        self._prefix_match = prefix_match
        self._classes: dict[int, PriorityClass] = {}
        self._live: dict[bool, dict[str, tuple[int, float]]] = {False: {}, True: {}}
        """How many requests wait or run, and the weight, of each tenant that has any: in the idle
        class, and in the others."""
        self._by_age = RequestHeap()
        self._by_class = RequestHeap()
        """All waiting requests. The first belongs to the most important class."""

    def __len__(self) -> int:
        return len(self._by_class)

    def enqueue(self, request: Request) -> None:
        self._class_of(request).enqueue(request)
        self._by_age.push(aged_priority(request, self._aging_s), request)
        self._by_class.push(request.priority, request)
        self._count_live(request, +1)

    def dequeue(self, request: Request) -> None:
        self._forget(request)
        self._class_of(request).dequeue(request)
        self._count_live(request, -1)

    def admit(self, request: Request) -> None:
        self._forget(request)
        self._class_of(request).admit(request)

    def leave(self, request: Request) -> None:
        self._class_of(request).leave(request)
        self._count_live(request, -1)

    def _forget(self, request: Request) -> None:
        self._by_age.remove(request)
        self._by_class.remove(request)

    def _count_live(self, request: Request, change: int) -> None:
        live = self._live[request.is_idle]
        count, _ = live.get(request.fair_key, (0, 0.0))
        if count + change:
            live[request.fair_key] = (count + change, request.weight)
        else:
            del live[request.fair_key]

    @property
    def is_contended(self) -> bool:
        return sum(map(len, self._live.values())) > 1

    def head(self) -> Request | None:
        top = self._top_class()
        if top is None:
            return None
        accounts = top.waiting.first(_MAX_TENANTS_COMPARED, self._quantum)
        if self._quantum == 0:
            return accounts[0].waiting.peek()
        candidates = [request for account in accounts for request in account.candidates()]
        if len(candidates) == 1:
            return candidates[0]
        return max(candidates, key=self._prefix_match)  # The first of equals.

    def _top_class(self) -> PriorityClass | None:
        """The most important class in which anybody waits, with those who have aged into it."""
        first, oldest = self._by_class.peek(), self._by_age.peek()
        if first is None or oldest is None:
            return None
        if oldest.priority > first.priority:
            self.dequeue(oldest)
            oldest.priority = first.priority
            self.enqueue(oldest)
        return self._class_of(first)

    def claims(self, running: Iterable[Request]) -> Iterator[Claim]:
        top = self._top_class()
        first = self._by_class.peek()
        if top is None or first is None:
            return iter(())
        running = list(running)
        is_mixed = any(request.priority > first.priority for request in running)
        if not is_mixed and not self.is_contended:
            return iter(())
        holdings = self._holdings(running, is_idle=first.is_idle)
        digests = {request.adapter_digest for request in running}
        claims = []
        accounts = [*top.waiting.first(_MAX_CLAIMANTS), *top.waiting.in_turn(_MAX_CLAIMANTS)]
        for account in dict.fromkeys(accounts):
            request = account.candidates()[0]
            lower = outranked(request, running, self._aging_s) if is_mixed else []
            num_blocks = self._num_groups * -(-request.num_tokens // self._block_size)
            most_blocks = self._num_groups * -(-request.max_total_tokens // self._block_size)
            cost = self._cost_to_come(request)
            if account.counter > accounts[0].counter + self._quantum:
                most_blocks = self._num_blocks  # Those who were served less go first.
            margin = holdings.margin(request, num_blocks, most_blocks, cost)
            if not lower and margin is None:
                continue
            others: Iterable[Request] = ()
            slot_users: list[Request] = []
            if margin is not None:
                others = holdings.displaceable(request, margin)
                digest = request.adapter_digest
                if digest and len(digests - {"", digest}) >= self._max_loras:
                    slot_users = holdings.users_of_a_slot(request, cost)
            victims = chain(lower, (victim for victim in others if victim not in lower))
            key = (holdings.of(request), account.counter, request.arrival)
            claims.append((key, Claim(request, victims, margin is not None, slot_users)))
        claims.sort(key=itemgetter(0))
        return (claim for _, claim in claims)

    def ranked(self, running: Iterable[Request]) -> list[Request]:
        """Ordered by class, then by what the tenant holds, then by work done: the tenant that holds
        most gives way first, with the request that loses least.

        Whoever gives way holds nothing, so by that alone requests could take turns for ever. So of
        those in a class that have not got further than they were when they gave way, the oldest is
        the last to do so again."""
        requests = list(running)
        holdings = self._holdings(requests, is_idle=False).all()
        oldest: dict[int, Request] = {}
        for request in requests:
            first = oldest.get(request.priority, request)
            if request.arrival <= first.arrival and not request.may_give_way:
                oldest[request.priority] = request
        return sorted(
            requests,
            key=lambda r: (
                r.priority,
                oldest.get(r.priority) is not r,
                holdings[r.priority, r.fair_key],
                self._account(r).counter,
                -r.num_computed_tokens,
                r.arrival,
            ),
        )

    def by_service(self, running: Iterable[Request]) -> list[Request]:
        return sorted(running, key=lambda r: (r.priority, self._account(r).counter, r.arrival))

    def _cost_to_come(self, request: Request) -> float:
        """The most that a waiting request may still be charged."""
        num_new = 0 if request.was_admitted else request.num_prompt_tokens
        num_left = request.max_total_tokens - request.num_tokens
        return (self._input_cost * num_new + self._output_cost * num_left) / request.weight

    def _holdings(self, running: list[Request], *, is_idle: bool) -> Holdings:
        """is_idle: whose share it is about."""
        return Holdings(
            running,
            lambda request: self._account(request).counter,
            num_rows=self._num_rows,
            num_blocks=self._num_blocks,
            quantum=self._quantum,
            share=1 / (sum(weight for _, weight in self._live[is_idle].values()) or 1.0),
        )

    def charge_prompt(self, request: Request, num_computed: int, num_cached: int) -> None:
        cost = self._input_cost * num_computed + self._cached_cost * num_cached
        self._account(request).counter += cost / request.weight

    def charge_output(self, request: Request, num_tokens: int) -> None:
        try:  # ``_account`` without the call: this happens for every token.
            account = self._classes[request.priority].accounts[request.fair_key]
        except KeyError:
            account = self._class_of(request).account(request.fair_key)
        account.counter += self._output_cost * num_tokens / request.weight

    def spread(self) -> float:
        return max((c.waiting.spread() for c in self._classes.values()), default=0.0)

    def _account(self, request: Request) -> Account:
        try:  # This is asked for every token; only accounts without debt are ever forgotten.
            return self._classes[request.priority].accounts[request.fair_key]
        except KeyError:
            return self._class_of(request).account(request.fair_key)

    def _class_of(self, request: Request) -> PriorityClass:
        found = self._classes.get(request.priority)
        if found is None:
            if len(self._classes) > _MAX_IDLE_CLASSES:
                # Priorities are any number a client likes: do not keep one that nobody uses.
                self._classes = {p: c for p, c in self._classes.items() if not c.is_idle}
            found = self._classes[request.priority] = PriorityClass()
        return found
