"""Random arrivals, aborts and steps: each output equals the same request alone, nothing leaks."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.scheduler.harness import Harness

# Few tokens and few lengths, so that prompts often share prefixes.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


ENGINES = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 4]),
        "num_blocks": st.integers(8, 30),
        "num_swap_blocks": st.sampled_from([0, 0, 3, 40]),
        "max_model_len": st.integers(8, 40),
        "max_num_seqs": st.integers(1, 6),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 3]),
        "max_num_partial_prefills": st.sampled_from([None, None, 1]),
        "watermark": st.sampled_from([0.0, 0.1]),
        "async_scheduling": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "prefix_cache_tenant_floor": st.sampled_from([0.0, 0.2]),
        "prefix_cache_tenant_ceiling": st.sampled_from([1.0, 0.3]),
        "scheduler_reserve_full_isl": st.booleans(),
        "forecast_admission": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority", "fair_share"]),
        "priority_aging_s": st.sampled_from([1e-4, 1e9]),
        "fair_share_quantum": st.sampled_from([0.0, 20.0]),
    }
)


class EngineMachine(RuleBasedStateMachine):
    """The harness checks every invariant after every step; the toy runner checks every plan."""

    @initialize(
        options=ENGINES,
        spare_budget=st.integers(0, 14),
        draft_hits=st.sampled_from([None, 0.0, 0.8, 1.0]),
    )
    def start(self, options: dict[str, Any], spare_budget: int, draft_hits: float | None) -> None:
        budget = options["max_num_seqs"] + spare_budget
        self.harness = Harness(
            vocab_size=20, max_num_batched_tokens=budget, draft_hits=draft_hits, **options
        )

    @rule(
        prompt=PROMPTS,
        salt=st.sampled_from(["one", "two"]),
        num_public_tokens=st.sampled_from([0, 0, 1, 4]),
        fair_key=st.sampled_from(["a", "b", "c"]),
        weight=st.sampled_from([1.0, 3.0]),
        priority=st.sampled_from([0, 0, 1, -1]),
        max_tokens=st.sampled_from([None, 1, 4, 9]),
        min_tokens=st.sampled_from([0, 1]),
        ignore_eos=st.booleans(),
        stop_token_ids=st.sampled_from([(), (5,)]),
    )
    def add(self, prompt: list[int], num_public_tokens: int, **params: Any) -> None:
        name = str(len(self.harness.messages))
        num_public_tokens = min(num_public_tokens, len(prompt))
        self.harness.add(name, prompt, num_public_tokens=num_public_tokens, **params)

    @precondition(lambda self: self.harness.messages)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_ids = list(self.harness.messages)
        self.harness.core.abort([data.draw(st.sampled_from(request_ids))])
        self.harness.core.check_integrity()

    @precondition(lambda self: self.harness.messages)
    @rule(data=st.data(), parked=st.booleans())
    def stall(self, data: st.DataObject, parked: bool) -> None:
        request_id = data.draw(st.sampled_from(list(self.harness.messages)))
        core = self.harness.core
        (core.park if parked else core.unpark)([request_id])
        core.check_integrity()

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        self.harness.step(count)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.core.unpark(self.harness.messages)
            self.harness.run()
            too_long = {
                request_id
                for request_id, message in self.harness.messages.items()
                if len(message.prompt_token_ids) + (message.params.max_tokens or 1)
                > self.harness.max_total
            }
            self.harness.check_outputs(errors=too_long)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
