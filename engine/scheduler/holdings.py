"""Who gives way to whom when rows, blocks or adapter slots are short.

A tenant's *holding* is the share of the rows or of the blocks that its running requests have,
whichever is larger, divided by its weight. Its fair share is one part of the weights of all tenants
that wait or run. A tenant claims room for a request if it holds at most an eighth of its share; or
if it holds at most half of it with all that the request may need, and was served no more than a
quantum above whoever waits:

* If it then holds no more than its share, the request is admitted at once, unless all who run were
  served less (their counters are more than a quantum below). The forecast of what others may need
  later does not keep it waiting.
* Otherwise (there may be fewer rows than tenants, or the request is large) it is admitted as soon
  as somebody was served so much more that this stays so until the request has ended.

For it, running requests of tenants give way that hold their share or more. The half, the quantum
and the cost of the request keep tenants from taking turns: between those that hold about as much,
the order of admission decides, and room comes with the ends of requests. And a request that gave
way does so again only after it got further than it was, so each turn is progress; a claim does not
take the blocks that it needs for that, either.

Adapter slots are few, and all requests of an adapter share one. So a tenant without a slot is
treated like one whose request is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from engine.request import Request

_HOLDS_LITTLE, _HOLDS_LESS = 0.125, 0.5


class Holdings:
    """What each tenant holds at one moment, from the requests that run."""

    def __init__(
        self,
        running: Sequence[Request],
        counter: Callable[[Request], float],
        *,
        num_rows: int,
        num_blocks: int,
        quantum: float,
        share: float,
    ) -> None:
        """counter: service that the request's tenant received in its class. share: the fair one,
        divided by weight."""
        self._running = running
        self._counter = counter
        self._num_rows = num_rows
        self._num_blocks = num_blocks
        self._quantum = quantum
        self._share = share
        self._held: dict[tuple[bool, str], tuple[int, int]] = {}
        """Blocks and rows of each tenant, in the idle class and in the others. A block that several
        requests share counts for each."""
        self._tenants: dict[tuple[int, str], Request] = {}
        """One of the requests of each tenant in each class."""
        for request in running:
            fair_key, holder = request.fair_key, (request.is_idle, request.fair_key)
            num_held, count = self._held.get(holder, (0, 0))
            self._held[holder] = (num_held + request.block_table.num_held, count + 1)
            self._tenants[request.priority, fair_key] = request

    def of(self, request: Request, *, more_blocks: int = 0, more_rows: int = 0) -> float:
        """The holding of the request's tenant, if it had so much more."""
        holder = (request.is_idle, request.fair_key)
        num_blocks, num_rows = self._held.get(holder, (0, 0))
        by_blocks = min(1.0, (num_blocks + more_blocks) / self._num_blocks)
        return max(by_blocks, (num_rows + more_rows) / self._num_rows) / request.weight

    def all(self) -> dict[tuple[int, str], float]:
        """Of all tenants, by class and fair key."""
        return {key: self.of(request) for key, request in self._tenants.items()}

    def margin(
        self, request: Request, num_blocks: int, most_blocks: int, cost: float
    ) -> float | None:
        """By how much the counter of a waiting request's tenant may be above those of others that
        give way to it, or has to be below them; None if it claims nothing. It takes so many blocks,
        ``most_blocks`` in the end, and until then at most so much service."""
        if self.of(request) > _HOLDS_LITTLE * self._share:
            in_the_end = self.of(request, more_blocks=most_blocks, more_rows=1)
            if in_the_end > _HOLDS_LESS * self._share:
                return None
        fits = self.of(request, more_blocks=num_blocks, more_rows=1) <= self._share
        margin = self._quantum if fits else -cost
        least = 0.0 if fits else self._share
        others = self._tenants.values()
        return margin if any(self._gives_way(o, request, margin, least) for o in others) else None

    def users_of_a_slot(self, request: Request, cost: float) -> list[Request]:
        """The running requests of an adapter that all give way to a waiting request which lacks a
        slot for its own; none if there is no such adapter."""
        by_digest: dict[str, list[Request]] = {}
        num_used: dict[str, set[str]] = {}
        for other in self._running:
            if other.adapter_digest:
                by_digest.setdefault(other.adapter_digest, []).append(other)
                num_used.setdefault(other.fair_key, set()).add(other.adapter_digest)
        if request.fair_key in num_used:
            return []
        for users in sorted(
            by_digest.values(), key=lambda users: -min(len(num_used[r.fair_key]) for r in users)
        ):
            if all(
                r.may_give_way
                and len(num_used[r.fair_key]) / len(by_digest) >= self._share * r.weight
                and self._gives_way(r, request, -cost, 0.0)
                for r in users
            ):
                return users
        return []

    def displaceable(self, request: Request, margin: float) -> Iterator[Request]:
        """The running requests that give way to a waiting one, as far as it needs them: always one
        of the tenant that then holds most, and of its requests the one that loses least. margin: of
        the waiting one."""
        by_tenant: dict[str, list[Request]] = {}
        for other in self._running:
            if not other.may_give_way:
                continue
            if other.fair_key != request.fair_key and other.priority >= request.priority:
                by_tenant.setdefault(other.fair_key, []).append(other)
        for requests in by_tenant.values():
            requests.sort(key=lambda r: (-r.num_computed_tokens, r.arrival))
        held, self._held = self._held, dict(self._held)
        while by_tenant:
            requests = max(by_tenant.values(), key=lambda rs: self.of(rs[-1]))
            victim = requests.pop()
            if self._gives_way(victim, request, margin, self._share):
                yield victim
                holder = (victim.is_idle, victim.fair_key)
                num_blocks, num_rows = self._held[holder]
                num_blocks -= victim.block_table.num_held
                self._held[holder] = (num_blocks, num_rows - 1)
            else:
                requests.clear()  # Its others give way no more than this one.
            if not requests:
                del by_tenant[victim.fair_key]
        self._held = held

    def _gives_way(self, other: Request, request: Request, margin: float, least: float) -> bool:
        """Whether the tenant of a running request holds at least so much, and gives way to a
        waiting one."""
        if other.fair_key == request.fair_key or self.of(other) < least:
            return False
        if other.priority != request.priority:  # Counters of different classes do not compare.
            return other.priority > request.priority
        if other.awaits_grant:  # It is not served meanwhile, so its counter does not grow.
            return True
        return self._counter(request) <= self._counter(other) + margin
