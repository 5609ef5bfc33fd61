"""Equal service for every tenant in proportion to its weight, whatever its request rate.

Virtual token counters after Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024):
each tenant's counter grows by the cost of its work divided by its weight, and the tenant with the
least counter is admitted next. Where the paper charges a whole prompt at admission, a chunk is
charged when it is scheduled; so the bound on the difference between two tenants shrinks with it.

On top, as in Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (2025): among tenants that
are no more than a quantum above the least counter (that have deficit left, in the paper's words),
the request with the longest cached prefix goes first.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from engine.scheduler.aging import aged_priority, outranked
from engine.scheduler.heap import RequestHeap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from engine.config import EngineConfig
    from engine.request import Request

# How far the search for a cached prefix looks: tenants, and requests of each.
_MAX_TENANTS_COMPARED = 4
_MAX_REQUESTS_COMPARED = 4
# Oldest requests of a tenant that are looked up at once: the next few searches find them there.
_NUM_LOOKED_UP = 16
# How often a tenant's oldest request may be overtaken by another of its own with a longer match.
_MAX_OVERTAKES = 8
# Accounts and classes kept before the first look for superfluous ones.
_MIN_ACCOUNTS_TO_PRUNE = 1024
_MAX_IDLE_CLASSES = 64


class Account:
    """What one tenant waits for and has been charged inside one priority class."""

    __slots__ = ("_oldest", "counter", "in_heap", "num_overtakes", "waiting")

    def __init__(self, counter: float) -> None:
        self.counter = counter
        """Service received: cost units divided by weight."""
        self.waiting = RequestHeap()
        self.in_heap = False
        self.num_overtakes = 0
        self._oldest: list[Request] = []
        """The first of ``waiting``, as far as they are known."""

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


class PriorityClass:
    """The accounts of one priority class; those with waiting requests are ordered by counter."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        # Counters only grow, so an entry may hold an old one: it is raised when it surfaces.
        self._heap: list[tuple[float, int, Account]] = []
        self._last_to_leave: Account | None = None
        self._num_pushed = 0
        self._prune_at = _MIN_ACCOUNTS_TO_PRUNE

    def account(self, fair_key: str) -> Account:
        account = self.accounts.get(fair_key)
        if account is None:
            account = self.accounts[fair_key] = Account(self._floor())
        return account

    def enqueue(self, request: Request) -> None:
        account = self.account(request.fair_key)
        if len(account.waiting) == 0 and request.is_new:
            # The paper's lift: a tenant earns no credit while it asks for nothing.
            account.counter = max(account.counter, self._floor())
        account.push(request)
        if not account.in_heap:
            account.in_heap = True
            self._num_pushed += 1
            heapq.heappush(self._heap, (account.counter, self._num_pushed, account))

    def dequeue(self, request: Request) -> None:
        account = self.accounts[request.fair_key]
        account.remove(request)
        if len(account.waiting) == 0:
            self._last_to_leave = account
            self._prune()

    def least(self) -> Account | None:
        """The waiting account with the least counter."""
        while self._heap:
            counter, order, account = self._heap[0]
            if len(account.waiting) == 0:
                heapq.heappop(self._heap)
                account.in_heap = False
            elif counter < account.counter:
                heapq.heapreplace(self._heap, (account.counter, order, account))
            else:
                return account
        return None

    def within(self, quantum: float) -> list[Account]:
        """Waiting accounts at most ``quantum`` above the least, the least first; only a few are
        returned."""
        found: list[Account] = []
        taken: list[tuple[float, int, Account]] = []
        while len(found) < _MAX_TENANTS_COMPARED:
            account = self.least()
            if account is None or (found and account.counter > found[0].counter + quantum):
                break
            found.append(account)
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return found

    def spread(self) -> float:
        """The largest difference in counters between two waiting tenants."""
        counters = [a.counter for _, _, a in self._heap if len(a.waiting)]
        return max(counters) - min(counters) if counters else 0.0

    def _floor(self) -> float:
        """The counter to which a tenant that joins the queue is lifted."""
        least = self.least()
        if least is not None:
            return least.counter
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
            if account.in_heap or account is self._last_to_leave or account.counter > floor
        }
        self._prune_at = max(_MIN_ACCOUNTS_TO_PRUNE, 2 * len(self.accounts))


class FairSharePolicy:
    """Fair between tenants inside a priority class; priorities as in ``PriorityPolicy``."""

    def __init__(self, config: EngineConfig, prefix_match: Callable[[Request], int]) -> None:
        self._input_cost = config.fair_share_input_cost
        self._output_cost = config.fair_share_output_cost
        self._cached_cost = config.fair_share_cached_cost
        self._quantum = config.fair_share_quantum
        self._aging_s = config.priority_aging_s
        self._prefix_match = prefix_match
        self._classes: dict[int, PriorityClass] = {}
        self._by_age = RequestHeap()
        """All waiting requests. The first decides which class is next."""

    def __len__(self) -> int:
        return len(self._by_age)

    def enqueue(self, request: Request) -> None:
        self._class_of(request).enqueue(request)
        self._by_age.push(aged_priority(request, self._aging_s), request)

    def dequeue(self, request: Request) -> None:
        self._by_age.remove(request)
        self._class_of(request).dequeue(request)

    def head(self) -> Request | None:
        oldest = self._by_age.peek()
        if oldest is None:
            return None
        accounts = self._class_of(oldest).within(self._quantum)
        if self._quantum == 0:
            return accounts[0].waiting.peek()
        candidates = [request for account in accounts for request in account.candidates()]
        if len(candidates) == 1:
            return candidates[0]
        return max(candidates, key=self._prefix_match)  # The first of equals.

    def ranked(self, running: Iterable[Request]) -> list[Request]:
        """Ordered by class, then by the tenant's counter, then by work done: the tenant furthest
        above its share gives way first, with the request that loses least.

        A class ranks by its oldest request, so that one that always gives way ages, too.
        """
        requests = list(running)
        class_keys: dict[int, float] = {}
        for request in requests:
            key = aged_priority(request, self._aging_s)
            class_keys[request.priority] = min(key, class_keys.get(request.priority, key))
        return sorted(
            requests,
            key=lambda r: (
                class_keys[r.priority],
                self._account(r).counter,
                -r.num_computed_tokens,
                r.arrival,
            ),
        )

    def displaceable(self, request: Request, running: Iterable[Request]) -> list[Request]:
        return outranked(request, running, self._aging_s)

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
        return max((c.spread() for c in self._classes.values()), default=0.0)

    def _account(self, request: Request) -> Account:
        try:  # This is asked for every token; only accounts without debt are ever forgotten.
            return self._classes[request.priority].accounts[request.fair_key]
        except KeyError:
            return self._class_of(request).account(request.fair_key)

    def _class_of(self, request: Request) -> PriorityClass:
        found = self._classes.get(request.priority)
        if found is None:
            if len(self._classes) > _MAX_IDLE_CLASSES:
                # Priorities are any number a client likes: do not keep one that nobody waits in.
                self._classes = {p: c for p, c in self._classes.items() if c.least() is not None}
            found = self._classes[request.priority] = PriorityClass()
        return found
