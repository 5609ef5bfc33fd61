"""Probes of a draft network, in the whole core: when they begin, and how long they last."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from engine.spec.config import SpeculativeConfig
from engine.spec.network import NetworkProposer
from tests.engine.spec.simulation import H200, padded
from tests.engine.spec.test_speculator import TimedRunner

NUM_PROMPT_TOKENS, NUM_TOKENS = 30, 40


class WatchedRunner(TimedRunner):
    """Remembers how far the requests are when drafts are asked for."""

    def __init__(self, rate: float) -> None:
        super().__init__(padded(H200), rate, draft_s=0.0001)
        self.num_generated: list[int] = []

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        self.num_generated.append(min(known for _, known in asked) - NUM_PROMPT_TOKENS)
        return super().draft(asked, num_tokens, wait=wait)


def serve(runner: WatchedRunner, num_requests: int) -> list[list[int]]:
    """One request after the other; of each for which drafts were made, where that was."""
    core = EngineCore(
        EngineConfig(
            model="toy",
            max_num_seqs=1,
            enable_prefix_caching=False,
            speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=3),
        ),
        runner,
        max_model_len=1000,
        overlap=True,
        proposer=NetworkProposer(runner),
        clock=runner.clock,
    )
    found = []
    for number in range(num_requests):
        core.add_request(
            GenerateRequest(
                request_id=str(number),
                prompt_token_ids=[2] * NUM_PROMPT_TOKENS,
                params=SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True),
            )
        )
        runner.num_generated = []
        while core.has_unfinished:
            core.step()
        if runner.num_generated:
            found.append(runner.num_generated)
    return found


def test_a_probe_begins_behind_a_prompt_and_ends_soon_where_all_is_wrong() -> None:
    """The network has to catch up with the prompt anyway, and has all features."""
    probes = serve(WatchedRunner(rate=0.0), 400)[5:]
    assert len(probes) >= 8
    assert all(len(where) == 4 and where[0] <= 4 for where in probes)


def test_where_some_are_right_it_says_more() -> None:
    """They do not pay, and are looked at in several steps of a request."""
    probes = serve(WatchedRunner(rate=0.1), 600)[5:]
    assert sum(len(where) == 8 for where in probes) >= 3
    assert sum(map(len, probes)) < 0.1 * 600 * NUM_TOKENS
