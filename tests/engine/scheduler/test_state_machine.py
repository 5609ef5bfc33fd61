"""Random arrivals, aborts and steps: each output equals the same request alone, nothing leaks."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.scheduler.harness import Harness

# Few tokens and few lengths, so that prompts often share prefixes.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class EngineMachine(RuleBasedStateMachine):
    """The harness checks every invariant after every step; the toy runner checks every plan."""

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        num_blocks=st.integers(8, 30),
        max_num_seqs=st.integers(1, 6),
        spare_budget=st.integers(0, 14),
        threshold=st.sampled_from([0, 0, 3]),
        watermark=st.sampled_from([0.0, 0.1]),
        overlap=st.booleans(),
        prefix_caching=st.booleans(),
        reserve=st.booleans(),
        max_model_len=st.integers(8, 40),
    )
    def start(
        self,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        spare_budget: int,
        threshold: int,
        watermark: float,
        overlap: bool,
        prefix_caching: bool,
        reserve: bool,
        max_model_len: int,
    ) -> None:
        self.harness = Harness(
            num_blocks=num_blocks,
            vocab_size=20,
            max_model_len=max_model_len,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_budget,
            long_prefill_token_threshold=threshold,
            watermark=watermark,
            async_scheduling=overlap,
            enable_prefix_caching=prefix_caching,
            scheduler_reserve_full_isl=reserve,
        )

    @rule(
        prompt=PROMPTS,
        salt=st.sampled_from(["one", "two"]),
        max_tokens=st.sampled_from([None, 1, 4, 9]),
        min_tokens=st.sampled_from([0, 1]),
        ignore_eos=st.booleans(),
        stop_token_ids=st.sampled_from([(), (5,)]),
    )
    def add(self, prompt: list[int], salt: str, **params: object) -> None:
        self.harness.add(str(len(self.harness.messages)), prompt, salt=salt, **params)

    @precondition(lambda self: self.harness.messages)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_ids = list(self.harness.messages)
        self.harness.core.abort([data.draw(st.sampled_from(request_ids))])
        self.harness.core.check_integrity()

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        self.harness.step(count)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.run()
            too_long = {
                request_id
                for request_id, message in self.harness.messages.items()
                if len(message.prompt_token_ids) + (message.params.max_tokens or 1)
                > self.harness.max_total
            }
            self.harness.check_outputs(errors=too_long)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
