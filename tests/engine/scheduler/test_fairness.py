"""The cases of the VTC paper (Sheng et al., OSDI 2024, section 5) on a simulated clock.

What ``fair_share`` guarantees, ``fcfs`` visibly lacks.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from engine.scheduler.fair_share import FairSharePolicy
from tests.engine.scheduler.simulation import OUTPUT_COST, Arrival, Simulation, steady

DURATION_S = 20.0
MAX_NUM_SEQS = 8
# The paper's U = max(w_p * L_input, w_q * M), where M bounds the tokens of a running batch; here
# all of them are tokens of prompts and outputs of 32 each.
U = OUTPUT_COST * MAX_NUM_SEQS * 64
QUANTUM = pytest.mark.parametrize("quantum", [0.0, 2048.0], ids=["vtc", "dlpm"])


def fair(arrivals: list[Arrival], quantum: float = 0.0, **options: Any) -> Simulation:
    return Simulation(
        arrivals,
        policy="fair_share",
        fair_share_quantum=quantum,
        max_num_seqs=MAX_NUM_SEQS,
        **options,
    )


def fcfs(arrivals: list[Arrival]) -> Simulation:
    return Simulation(arrivals, policy="fcfs", max_num_seqs=MAX_NUM_SEQS)


def percentile(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1))]


class TestTwoOverloadedClients:
    """Both send more than their half; one sends three times as much as the other."""

    arrivals: ClassVar = steady("slow", 16, DURATION_S) + steady("fast", 48, DURATION_S)

    @QUANTUM
    def test_fair_share_serves_them_equally(self, quantum: float) -> None:
        simulation = fair(self.arrivals, quantum).run(DURATION_S)
        assert simulation.service("slow") == pytest.approx(simulation.service("fast"), rel=0.05)
        assert simulation.widest_gap("slow", "fast") <= 2 * (U + quantum)

    def test_fcfs_serves_them_by_their_rate(self) -> None:
        simulation = fcfs(self.arrivals).run(DURATION_S)
        assert simulation.service("fast") > 2.8 * simulation.service("slow")
        assert simulation.widest_gap("slow", "fast") > 10 * U


class TestOnOffClient:
    """One sends little, and only every other four seconds; the other floods."""

    arrivals: ClassVar = [
        *(a for a in steady("on-off", 4, DURATION_S) if int(a.time_s / 4) % 2 == 0),
        *steady("loud", 40, DURATION_S),
    ]

    @QUANTUM
    def test_fair_share_keeps_its_latency(self, quantum: float) -> None:
        simulation = fair(self.arrivals, quantum).run(DURATION_S)
        assert percentile(simulation.ttfts("on-off"), 0.95) < 0.5
        assert percentile(simulation.ttfts("loud"), 0.95) > 5.0


@pytest.mark.nightly
class TestWeights:
    """Three clients with backlog and weights 1, 2 and 4."""

    arrivals: ClassVar = [
        arrival
        for tenant, weight in (("one", 1.0), ("two", 2.0), ("four", 4.0))
        for arrival in steady(tenant, 30, DURATION_S, weight=weight)
    ]

    def test_fair_share_divides_service_by_weight(self) -> None:
        simulation = fair(self.arrivals).run(DURATION_S)
        one = simulation.service("one")  # ``service`` is per unit of weight.
        assert simulation.service("two") == pytest.approx(one, rel=0.05)
        assert simulation.service("four") == pytest.approx(one, rel=0.05)


@pytest.mark.nightly
class TestLateComer:
    """One client has been served for ten seconds when another arrives."""

    arrivals: ClassVar = [
        *steady("early", 40, DURATION_S),
        *(Arrival(10 + a.time_s, "late") for a in steady("late", 40, DURATION_S / 2)),
    ]

    def test_it_gets_its_share_from_then_on_and_no_more(self) -> None:
        simulation = fair(self.arrivals).run(DURATION_S)
        before = max(s["early"] for t, s in simulation.trace if t <= 10)
        since = simulation.service("early") - before
        assert simulation.service("late") == pytest.approx(since, rel=0.05)


@pytest.mark.nightly
def test_an_idle_share_is_not_wasted() -> None:
    """Work conservation: alone, a client gets everything."""
    both = fair(steady("a", 40, DURATION_S) + steady("b", 40, DURATION_S)).run(DURATION_S)
    alone = fair(steady("a", 40, DURATION_S)).run(DURATION_S)
    assert alone.service("a") > 1.95 * both.service("a")


@pytest.mark.nightly
def test_many_tenants_each_get_the_same() -> None:
    arrivals = [
        arrival for i in range(20) for arrival in steady(f"t{i}", 3 + i % 5 * 4, DURATION_S)
    ]
    simulation = fair(arrivals).run(DURATION_S)
    served = [simulation.service(f"t{i}") for i in range(20)]
    assert max(served) - min(served) <= 2 * U


class TestLocality:
    """Tenants with a long shared prefix of their own, and a cache that holds only some of them."""

    def arrivals(self) -> list[Arrival]:
        return [
            Arrival(
                i / 40,
                tenant,
                max_tokens=4,
                prompt=[t] * 96 + [(7 * i + t) % 997 for _ in range(8)],
            )
            for i in range(1200)
            for t, tenant in [(i % 6, f"t{i % 6}")]
        ]

    def test_a_quantum_buys_cache_hits_and_keeps_the_bound(self) -> None:
        options = {"num_blocks": 24, "max_num_batched_tokens": 256}
        strict = fair(self.arrivals(), 0.0, **options).run(20)
        local = fair(self.arrivals(), 2048.0, **options).run(20)
        hits = [s.core.stats().prefix_cache_hits for s in (strict, local)]
        assert hits[1] > 1.5 * hits[0]
        done = [sum(o.finished_s is not None for o in s.outcomes.values()) for s in (strict, local)]
        assert done[1] > done[0]
        policy = local.core.scheduler.policy
        assert isinstance(policy, FairSharePolicy)
        counters = [account.counter for account in policy._classes[0].accounts.values()]
        assert max(counters) - min(counters) <= 2 * (U + 2048)


class TestFullCache:
    """One tenant fills rows and blocks with long streams; another sends short requests."""

    @staticmethod
    def ttfts(
        num_floods: int, *, num_streams: int, own_tokens: int = 0, **options: Any
    ) -> list[float]:
        """Of the short requests. own_tokens: of a long one that runs beside them."""
        flood = [
            Arrival(0.0, f"flood {i}", max_tokens=600)
            for i in range(num_floods)
            for _ in range(num_streams)
        ]
        probes = [Arrival(1 + i, "probe", max_tokens=8) for i in range(10)]
        own = [Arrival(0.5, "probe", max_tokens=own_tokens)] if own_tokens else []
        options.setdefault("max_num_seqs", 64)
        options.setdefault("policy", "fair_share")
        simulation = Simulation(flood + own + probes, num_blocks=256, **options).run(13)
        return sorted(
            outcome.ttft_s
            for outcome in simulation.outcomes.values()
            if outcome.arrival in probes and outcome.first_token_s is not None
        )

    @pytest.mark.parametrize("num_rows", [8, 64], ids=["rows", "blocks"])
    @pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])
    def test_a_newcomer_is_admitted_at_once(self, num_rows: int, overlap: bool) -> None:
        options: dict[str, Any] = {"max_num_seqs": num_rows, "async_scheduling": overlap}
        calm = self.ttfts(1, num_streams=1, **options)
        flooded = self.ttfts(1, num_streams=150, **options)
        assert len(flooded) == len(calm) == 10
        assert flooded[-1] <= 4 * calm[-1]

    @pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])
    def test_what_it_runs_already_is_no_reason_to_wait(self, overlap: bool) -> None:
        """Its long stream holds more than an eighth of its share."""
        options: dict[str, Any] = {"own_tokens": 700, "async_scheduling": overlap}
        calm = self.ttfts(1, num_streams=1, **options)
        flooded = self.ttfts(1, num_streams=150, **options)
        assert len(flooded) == len(calm) == 10
        assert flooded[-1] <= 4 * calm[-1]

    def test_long_prompts_do_not_take_the_steps(self) -> None:
        flood = [
            Arrival(i / 100, "flood", num_prompt_tokens=900, max_tokens=4) for i in range(2000)
        ]
        probes = [Arrival(1 + i, "probe", max_tokens=8) for i in range(15)]
        ttfts = Simulation(flood + probes, num_blocks=256, policy="fair_share").run(20)
        assert len(ttfts.ttfts("probe")) == 15
        assert ttfts.ttfts("probe")[-1] < 0.5

    @pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])
    def test_among_fifty_floods_it_has_the_latency_of_its_share(self, overlap: bool) -> None:
        """A share is five blocks, and each stream of the floods grows to forty."""
        calm = self.ttfts(1, num_streams=1, async_scheduling=overlap)
        flooded = self.ttfts(50, num_streams=3, async_scheduling=overlap)
        assert len(flooded) == 10
        assert flooded[-1] <= 51 * calm[-1]

    def test_with_fewer_rows_than_tenants_it_is_served_in_turn(self) -> None:
        assert len(self.ttfts(50, num_streams=3, max_num_seqs=16)) == 10

    def test_under_fcfs_it_waits_for_the_flood(self) -> None:
        assert len(self.ttfts(1, num_streams=150, policy="fcfs")) == 0
