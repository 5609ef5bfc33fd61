"""Workloads on a manual clock: real core, scheduler and cache; a device that only costs time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.bench.overload import ModelledRunner
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from tests.engine.scheduler.harness import config

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INPUT_COST, OUTPUT_COST = 1.0, 2.0


@dataclass
class Arrival:
    time_s: float
    tenant: str
    num_prompt_tokens: int = 32
    max_tokens: int = 32
    weight: float = 1.0
    priority: int = 0
    prompt: Sequence[int] | None = None
    """Instead of a prompt nobody else has."""


@dataclass
class Outcome:
    arrival: Arrival
    first_token_s: float | None = None
    finished_s: float | None = None

    @property
    def ttft_s(self) -> float:
        assert self.first_token_s is not None, "never got a token"
        return self.first_token_s - self.arrival.time_s


def steady(tenant: str, per_s: float, until_s: float, **options: Any) -> list[Arrival]:
    """Requests of one tenant at a constant rate."""
    return [Arrival(i / per_s, tenant, **options) for i in range(int(until_s * per_s))]


class Simulation:
    """Runs arrivals through an engine and records who was served what, and when."""

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        *,
        num_blocks: int = 128,
        num_swap_blocks: int = 0,
        swap_s_per_block: float = 0.0,
        **options: Any,
    ) -> None:
        options.setdefault("max_num_seqs", 8)
        options.setdefault("max_num_batched_tokens", 128)
        self.runner = ModelledRunner(
            num_blocks, num_swap_blocks=num_swap_blocks, swap_s_per_block=swap_s_per_block
        )
        self.core = EngineCore(
            config(**options), self.runner, max_model_len=1024, clock=lambda: self.runner.now
        )
        self.outcomes: dict[str, Outcome] = {}
        self.trace: list[tuple[float, dict[str, float]]] = []
        """(time, service so far per tenant, divided by weight) after each step."""
        self._arrivals = deque(sorted(arrivals, key=lambda arrival: arrival.time_s))
        self._service = dict.fromkeys((arrival.tenant for arrival in self._arrivals), 0.0)

    def run(self, until_s: float = float("inf")) -> Simulation:
        while self.runner.now < until_s and (self._arrivals or self.core.has_unfinished):
            if not self.core.has_unfinished:
                self.runner.now = max(self.runner.now, self._arrivals[0].time_s)
            while self._arrivals and self._arrivals[0].time_s <= self.runner.now:
                self._submit(self._arrivals.popleft())
            self._step()
        return self

    def _submit(self, arrival: Arrival) -> None:
        index = len(self.outcomes)
        self.outcomes[str(index)] = Outcome(arrival)
        prompt = arrival.prompt or [
            (index * 31 + i * i) % 997 for i in range(arrival.num_prompt_tokens)
        ]
        self.core.add_request(
            GenerateRequest(
                request_id=str(index),
                prompt_token_ids=list(prompt),
                params=SamplingParams(max_tokens=arrival.max_tokens),
                fair_key=arrival.tenant,
                weight=arrival.weight,
                priority=arrival.priority,
            )
        )

    def _step(self) -> None:
        for output in self.core.step():
            assert output.finish_reason != "error", output.error
            outcome = self.outcomes[output.request_id]
            arrival = outcome.arrival
            cost = OUTPUT_COST * len(output.new_token_ids)
            if outcome.first_token_s is None:
                outcome.first_token_s = self.runner.now
                cost += INPUT_COST * arrival.num_prompt_tokens
            if output.finish_reason is not None:
                outcome.finished_s = self.runner.now
            self._service[arrival.tenant] += cost / arrival.weight
        self.trace.append((self.runner.now, dict(self._service)))

    def service(self, tenant: str) -> float:
        """Of all the run, per unit of weight."""
        return self._service[tenant]

    def ttfts(self, tenant: str) -> list[float]:
        return sorted(
            outcome.ttft_s
            for outcome in self.outcomes.values()
            if outcome.arrival.tenant == tenant and outcome.first_token_s is not None
        )

    def widest_gap(self, one: str, two: str) -> float:
        """The largest difference in service between two tenants over any interval of the run."""
        gaps = [service[one] - service[two] for _, service in self.trace]
        return max(gaps) - min(gaps)
