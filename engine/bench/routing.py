"""``python -m engine.bench.routing``: what the choice of an engine costs and gains, over a fleet.

Runs the real routers, cores, schedulers and caches, on devices with the modelled times of H200s and
8B parameters. Many tenants, a few of which ask for most, send prompts that begin with one of their
prefixes; two of them always have more waiting than is served, one with a single prefix, the other
with a new one each time. Gateways know what they sent, and of the rest what engines report once a
second. ``--cost`` measures the routers' own time instead.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, count
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from engine.bench.h200 import H200
from engine.client.backlog import Backlog
from engine.client.router import ROUTERS, D2lpm, Router, RouterName
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest, Ready, Stats
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine.client.client import EngineClient

REPORT_S = 1.0
"""As ``PING_INTERVAL_S`` of the client."""
_BLOCK_SIZE = 16
_HEAVY = ("one prefix", "many prefixes")


class Load(NamedTuple):
    """What is asked for."""

    num_tenants: int = 1000
    requests_per_s: float = 20.0
    """For each engine, of all tenants but the two that always wait."""
    num_prefixes: int = 3
    """Of each tenant: 256 to ``max_prefix`` tokens."""
    max_prefix: int = 2048
    max_new: int = 128
    num_waiting: int = 40
    """Requests for each engine that each of the two always has unfinished; 0: there are none."""
    num_blocks: int = 4096
    """Of the cache of each engine."""
    seed: int = 0


@dataclass(slots=True)
class Site:
    """An engine, with a clock of its own."""

    name: str
    core: EngineCore
    runner: H200


@dataclass(slots=True)
class View:
    """An engine as one gateway knows it: what routers read of an ``EngineClient``."""

    name: str
    backlog: Backlog
    info: Ready
    num_own: int = 0
    num_others: int = 0

    @property
    def load(self) -> int:
        return self.num_own + self.num_others


@dataclass(slots=True)
class Sent:
    """A request that has not ended."""

    request: GenerateRequest
    router: Router
    view: View
    at_s: float
    has_begun: bool = False


@dataclass(slots=True)
class Report:
    """Of one policy. Times are modelled."""

    seconds: float = 0.0
    num_tokens: int = 0
    """Computed or found for requests that have ended: prompts and answers."""
    ttfts_s: list[float] = field(default_factory=list)
    """Of the tenants that do not always wait."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    lead: float = 0.0
    """The most service that one of the two that always wait got more than the other, since any
    time."""
    num_dry: int = 0
    """Times that one of the two had nothing waiting at an engine, when all was reported."""

    def ttft_s(self, share: float) -> float:
        found = sorted(self.ttfts_s)
        return found[int(share * (len(found) - 1))] if found else float("inf")


class Simulation:
    """A fleet under a load, until ``seconds`` of modelled time are over."""

    def __init__(
        self, policy: RouterName, load: Load, *, num_engines: int, num_gateways: int
    ) -> None:
        self.config = EngineConfig(
            model="modelled",
            max_num_seqs=64,
            max_num_batched_tokens=8192,
            target_gap_ms=50.0,
            max_num_queued_reqs=None,
            policy="fair_share",
            async_scheduling=True,
        )
        self.load = load
        self.rng = random.Random(load.seed)
        self.sites = [self._site(str(number)) for number in range(num_engines)]
        self.gateways = [
            (ROUTERS[policy](), [self._view(site) for site in self.sites])
            for _ in range(num_gateways)
        ]
        self.report = Report()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._ids = count()
        self._sent: dict[str, Sent] = {}
        """The requests that have not ended."""
        self._least = self._most = 0.0
        """Of the differences between the two tenants so far."""
        self._prefixes: dict[tuple[str, int], list[int]] = {}
        weights = accumulate(1 / (rank + 1) for rank in range(load.num_tenants))
        self._weights = list(weights)

    def _site(self, name: str) -> Site:
        runner = H200(self.load.num_blocks)
        core = EngineCore(self.config, runner, max_model_len=4096, clock=lambda: runner.now)
        return Site(name, core, runner)

    def _view(self, site: Site) -> View:
        ready = Ready(
            model="modelled",
            max_model_len=4096,
            vocab_size=1000,
            block_size=_BLOCK_SIZE,
            num_blocks=self.load.num_blocks,
            device="modelled",
            pid=0,
        )
        return View(site.name, Backlog(self.config), ready)

    def run(self, seconds: float) -> Report:
        self._at(0.0, self._report)
        if self.load.requests_per_s:
            self._at(0.0, self._arrive)
        for tenant in _HEAVY if self.load.num_waiting else ():
            for _ in range(self.load.num_waiting * len(self.sites)):
                self._ask(tenant, 0.0)
        while self._events[0][0] < seconds:
            now, _, happens = heappop(self._events)
            happens(now)
        self.report.seconds = seconds
        return self.report

    def _at(self, when: float, happens: Callable[[float], None]) -> None:
        heappush(self._events, (when, next(self._order), happens))

    # -- what is asked for

    def _arrive(self, now: float) -> None:
        rank = self.rng.choices(range(len(self._weights)), cum_weights=self._weights)[0]
        self._ask(f"tenant {rank}", now)
        rate = self.load.requests_per_s * len(self.sites)
        self._at(now + self.rng.expovariate(rate), self._arrive)

    def _prompt(self, tenant: str, number: int) -> list[int]:
        if tenant == _HEAVY[1]:
            which = number
        elif tenant == _HEAVY[0]:
            which = 0
        else:
            which = int(self.load.num_prefixes * self.rng.random() ** 2)
        known = self._prefixes.get((tenant, which))
        if known is None:
            length = self.rng.randint(256, self.load.max_prefix)
            known = [self.rng.randrange(997) for _ in range(length)]
            if tenant != _HEAVY[1]:
                self._prefixes[tenant, which] = known
        return known + [self.rng.randrange(997) for _ in range(self.rng.randint(16, 128))]

    def _ask(self, tenant: str, now: float) -> None:
        number = next(self._ids)
        request = GenerateRequest(
            request_id=str(number),
            prompt_token_ids=self._prompt(tenant, number),
            params=SamplingParams(max_tokens=self.rng.randint(1, self.load.max_new)),
            cache_salt=tenant,
            fair_key=tenant,
        )
        index = self.rng.randrange(len(self.gateways))
        router, views = self.gateways[index]
        clients = cast("list[EngineClient]", views)
        chosen = next(iter(router.ranked(request, clients)))
        router.sent(request, chosen)
        view = views[int(chosen.name)]
        view.backlog.send(request)
        view.num_own += 1
        site = self.sites[int(view.name)]
        self._sent[request.request_id] = Sent(request, router, view, now)
        if not site.core.has_unfinished:
            site.runner.now = max(site.runner.now, now)
            self._at(site.runner.now, lambda _: self._step(site))
        site.core.add_request(request)

    # -- what engines do

    def _step(self, site: Site) -> None:
        for output in site.core.step():
            assert output.error is None, output.error
            sent = self._sent[output.request_id]
            if output.new_token_ids and not sent.has_begun:
                self._begin(sent, site.runner.now, output.num_cached_tokens)
            if output.finish_reason is not None:
                del self._sent[output.request_id]
                sent.view.num_own -= 1
                self.report.num_tokens += len(sent.request.prompt_token_ids)
                self.report.num_tokens += sent.request.params.max_tokens or 0
                if (tenant := sent.request.fair_key) in _HEAVY:
                    self._at(site.runner.now, partial(self._ask, tenant))
        if site.core.has_unfinished:
            self._at(site.runner.now, lambda _: self._step(site))

    def _begin(self, sent: Sent, now: float, num_cached: int) -> None:
        sent.has_begun = True
        sent.router.heard(sent.request, cast("EngineClient", sent.view), num_cached)
        self.report.prompt_tokens += len(sent.request.prompt_token_ids)
        self.report.cached_tokens += num_cached
        if sent.request.fair_key not in _HEAVY:
            self.report.ttfts_s.append(now - sent.at_s)

    def _report(self, now: float) -> None:
        for number, site in enumerate(self.sites):
            stats = site.core.stats()
            num_all = stats.num_running + stats.num_waiting
            for _, views in self.gateways:
                view = views[number]
                view.backlog.report(stats, view.backlog.mark())
                view.num_others = max(0, num_all - view.num_own)
            waiting = {tenant.fair_key for tenant in stats.tenants if tenant.num_queued}
            self.report.num_dry += len(set(_HEAVY) - waiting) if self.load.num_waiting else 0
        if self.load.num_waiting:
            self._compare()
        self._at(now + REPORT_S, self._report)

    def _compare(self) -> None:
        one, other = (sum(self._service(site, name) for site in self.sites) for name in _HEAVY)
        ahead = one - other
        self._least, self._most = min(self._least, ahead), max(self._most, ahead)
        self.report.lead = max(self.report.lead, ahead - self._least, self._most - ahead)

    def _service(self, site: Site, tenant: str) -> float:
        totals, config = site.core.scheduler.tenants.of(tenant), self.config
        return (
            config.fair_share_input_cost * totals.computed_tokens
            + config.fair_share_cached_cost * totals.cached_tokens
            + config.fair_share_output_cost * totals.generation_tokens
        )


def max_lead(config: EngineConfig, load: Load, num_engines: int) -> float:
    """The bound: how much more one tenant may be served than another that has something waiting at
    every engine. For each engine it is what all tokens in the cache cost, and a request of each of
    the two, and the quantum, because a tenant that waits stops another one only then."""
    tokens = load.num_blocks * _BLOCK_SIZE + 2 * (load.max_prefix + 128 + load.max_new)
    return num_engines * (config.fair_share_output_cost * tokens + config.fair_share_quantum)


def cost_us(policy: RouterName, *, num_engines: int, num_entries: int, seconds: float) -> float:
    """Microseconds to route a request, of 2048 tokens, of which half is known somewhere."""
    simulation = Simulation(policy, Load(num_blocks=16), num_engines=num_engines, num_gateways=1)
    router, views = simulation.gateways[0]
    for view in views:
        view.info = msgspec.structs.replace(view.info, num_blocks=1 << 20)
    clients = cast("list[EngineClient]", views)
    rng = random.Random(0)

    def request(number: int) -> GenerateRequest:
        start = [number % 5000] * 1024
        rest = [rng.randrange(1 << 17) for _ in range(1024)]
        return GenerateRequest(
            request_id=str(number),
            prompt_token_ids=start + rest,
            params=SamplingParams(),
            cache_salt=str(number % 1000),
            fair_key=str(number % 1000),
        )

    def route(one: GenerateRequest) -> None:
        chosen = next(iter(router.ranked(one, clients)))
        router.sent(one, chosen)
        views[int(chosen.name)].backlog.send(one)

    numbers = iter(count())
    while isinstance(router, D2lpm) and len(router.index) < num_entries - num_engines:
        route(request(next(numbers)))
    for view in views:
        view.backlog.report(Stats(), view.backlog.mark())
    took: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        number = next(numbers)
        if number % 1000 == 0:  # Each second, if so many come.
            for view in views:
                view.backlog.report(Stats(), view.backlog.mark())
        one = request(number)
        began = time.perf_counter()
        route(one)
        took.append(time.perf_counter() - began)
    return 1e6 * sorted(took)[len(took) // 2]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m engine.bench.routing", description=__doc__.partition("\n\n")[2]
    )
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second and engine")
    parser.add_argument("--waiting", type=int, default=0, help="requests of the two, an engine")
    parser.add_argument("--seconds", type=float, default=20.0, help="modelled, of each policy")
    parser.add_argument("--cost", action="store_true", help="measure the routers' own time")
    options = parser.parse_args(argv)
    if options.cost:
        for policy in ROUTERS:
            took = cost_us(policy, num_engines=options.engines, num_entries=100_000, seconds=3)
            print(f"{policy:<15} {took:6.1f} us a request, {options.engines} engines")
        return
    load = Load(options.tenants, options.rate, num_waiting=options.waiting)
    print(
        f"{options.engines} engines, {options.gateways} gateways, {options.tenants} tenants, "
        f"{options.rate:g} requests a second and engine, {options.seconds:g} s"
    )
    print("policy           tokens/s  TTFT p50 ms  p99 ms  cached   lead / bound   dry")
    for policy in ROUTERS:
        simulation = Simulation(
            policy, load, num_engines=options.engines, num_gateways=options.gateways
        )
        report = simulation.run(options.seconds)
        bound = max_lead(simulation.config, load, options.engines)
        print(
            f"{policy:<15} {report.num_tokens / report.seconds:9.0f}"
            f"  {1000 * report.ttft_s(0.5):11.0f}  {1000 * report.ttft_s(0.99):6.0f}"
            f"  {report.cached_tokens / max(1, report.prompt_tokens):6.1%}"
            f"  {report.lead / bound:12.3f}  {report.num_dry:4}",
            flush=True,
        )


if __name__ == "__main__":
    main()
