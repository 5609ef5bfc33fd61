from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepPlan
from engine.spec.config import SpeculativeConfig
from engine.spec.costs import StepCosts
from engine.spec.network import NetworkProposer
from engine.spec.newcomers import Exposure, Newcomers
from engine.spec.planned_step import PlannedStep
from tests.engine.spec.simulation import BATCHES, H200, LENGTHS, padded
from tests.engine.spec.test_speculator import OUTSIDE_S, TimedRunner

CATCH_UP_S, PREFILL_S = 0.0012, 0.001
"""What the host does for the first drafts of newcomers, and to take them in."""


def serve_one(newcomers: Newcomers, *, num_tokens: int, lost_s: float) -> None:
    """A request comes, generates, and ends; drafts are made."""
    newcomers.come(1, 1, drafting=True)
    newcomers.lose(lost_s, 0.001)
    newcomers.end()
    newcomers.go_on(1, num_tokens)


def each_saves(saved_s: float) -> Callable[[int], float]:
    """As much of each token, whatever the batch."""
    return lambda batch: saved_s


def test_who_comes_seldom_costs_little() -> None:
    newcomers = Newcomers()
    assert newcomers.s_per_token(1) == newcomers.share(1, each_saves(0.1)) == 0.0
    for _ in range(300):
        serve_one(newcomers, num_tokens=100, lost_s=0.002)
    assert newcomers.s_per_token(1) == pytest.approx(0.002 / 100, rel=0.1)
    assert newcomers.share(1, each_saves(0.0002)) == pytest.approx(0.1, rel=0.1)


def test_newcomers_may_cost_all_that_drafts_save() -> None:
    newcomers = Newcomers()
    for _ in range(300):
        serve_one(newcomers, num_tokens=4, lost_s=0.002)
    assert newcomers.share(1, each_saves(0.00025)) == 1.0
    assert newcomers.share(1, each_saves(0.0)) == 0.0, "there is nothing to share"


def test_what_they_cost_is_a_part_of_what_drafts_are_said_to_save_now() -> None:
    """Not of what was thought before; and of each batch what they save there."""
    newcomers = Newcomers()
    for number in range(300):
        newcomers.come(1, 1 if number % 4 == 0 else 32, drafting=True)
        newcomers.lose(0.002, 0.001)
        newcomers.end()
        newcomers.go_on(32, 30)
        newcomers.go_on(1, 10)

    def saved_s(batch: int) -> float:
        return {1: 0.0004, 32: 0.0}[batch]

    assert newcomers.share(1, saved_s) == pytest.approx(0.5 / 4, rel=0.2), "drafts there only"
    newcomers.admit(1000, 1)
    assert newcomers.share(1, saved_s) == pytest.approx(0.5, rel=0.1)
    assert newcomers.share(1, each_saves(0.001)) == pytest.approx(0.05, rel=0.1)


def test_what_they_cost_counts_when_it_is_known_what_they_gave() -> None:
    """Many that come at once have given nothing yet."""
    newcomers = Newcomers()
    newcomers.come(32, 32, drafting=True)
    newcomers.lose(0.1, 0.04)
    newcomers.go_on(32, 32)
    assert newcomers.s_per_token(32) == newcomers.share(32, each_saves(0.0001)) == 0.0
    newcomers.go_on(32, 32 * 50)
    for _ in range(32):
        newcomers.end()
    newcomers.go_on(32, 32)
    assert 0.1 < newcomers.share(32, each_saves(0.0002)) < 0.6


def test_where_nobody_comes_they_cost_nothing() -> None:
    """Requests that come all at once: drafts would cost more than they save, but do not if they are
    made once few of these are left."""
    newcomers = Newcomers()
    for _ in range(10):
        newcomers.come(256, 256, drafting=True)
        newcomers.lose(0.02, 0.001)
        for batch in (256, 128, 32):
            for _ in range(batch // 2):
                newcomers.end()
            newcomers.go_on(batch, 12 * batch)

    def saved_s(batch: int) -> float:
        return {256: 0.0, 128: 0.0, 32: 2e-6}[batch]

    assert newcomers.share(256, saved_s) == 1.0
    assert newcomers.share(32, saved_s) == newcomers.s_per_token(32) == 0.0
    newcomers.admit(10, 32)
    assert newcomers.share(32, saved_s) > 0.5
    assert newcomers.s_per_token(32) > 0
    assert newcomers.s_per_token(8) == newcomers.s_per_token(256), "hardly anybody was seen there"


def test_losses_are_forgotten_with_those_who_made_them() -> None:
    newcomers = Newcomers()
    for lost_s in [0.002] * 100 + [0.0] * 300:
        serve_one(newcomers, num_tokens=10, lost_s=lost_s)
    assert newcomers.s_per_token(1) < 0.01 * 0.002 / 10


def test_what_is_done_for_the_first_time_is_not_what_they_cost() -> None:
    once, often = Newcomers(), Newcomers()
    for lost_s in [0.5] + [0.0001] * 20:
        serve_one(once, num_tokens=10, lost_s=lost_s)
    assert once.share(1, each_saves(0.0002)) < 0.5
    for _ in range(300):
        serve_one(often, num_tokens=10, lost_s=0.5)
    assert often.share(1, each_saves(0.08)) == pytest.approx(0.5 / 0.8, rel=0.1)


def test_what_takes_far_longer_once_counts_as_twice_the_usual() -> None:
    newcomers = Newcomers()
    for _ in range(200):
        newcomers.lose(0.010, 0.001)
    before = newcomers._lost_s
    newcomers.lose(5.0, 0.001)
    assert newcomers._lost_s - before == pytest.approx(0.020, rel=0.01)


def test_where_few_come_drafts_cost_what_these_lose() -> None:
    """Of the newcomers a tenth comes to batches of 8, which have half of all tokens."""
    newcomers = Newcomers()
    for number in range(1000):
        newcomers.come(1, 8 if number % 10 == 0 else 64, drafting=True)
        newcomers.lose(0.002, 0.001)
        newcomers.end()
        for batch in (8, 64):
            newcomers.go_on(batch, 50)
    assert newcomers.s_per_token(8) == pytest.approx(0.1 * 0.002 / 50, rel=0.15)
    assert newcomers.s_per_token(64) == pytest.approx(0.002 / 100, rel=0.15)


def test_losses_fade_while_nobody_drafts() -> None:
    newcomers = Newcomers()
    for _ in range(100):
        serve_one(newcomers, num_tokens=10, lost_s=0.002)
    before = newcomers.s_per_token(1)
    newcomers.come(1000, 1, drafting=False)
    newcomers.come(0, 1, drafting=True)
    assert 0.55 * before < newcomers.s_per_token(1) < 0.65 * before


def test_gains_are_no_reason_to_draft_more() -> None:
    newcomers = Newcomers()
    serve_one(newcomers, num_tokens=10, lost_s=-1.0)
    assert newcomers.s_per_token(1) == newcomers.share(1, each_saves(0.1)) == 0.0


def mixed(exposed_s: float, drafting_s: float = 0.0, batch: int = 4) -> PlannedStep:
    """A step with a prompt among others."""
    return PlannedStep(
        batch,
        3 if drafting_s else 0,
        3 * (batch - 1) if drafting_s else 0,
        0.0,
        only_decodes=False,
        num_new=1,
        exposed_s=exposed_s,
        drafting_s=drafting_s,
    )


def test_what_a_prompt_exposes_is_what_the_device_would_have_hidden() -> None:
    exposure = Exposure()
    assert exposure.lost_s(mixed(0.003), hidden_s=0.004) == pytest.approx(0.003)
    # The device would have waited for the rest anyway.
    assert exposure.lost_s(mixed(0.003), hidden_s=0.001) == pytest.approx(0.001)
    assert exposure.lost_s(mixed(0.003, batch=1), hidden_s=0.004) == 0.0, "nobody else waits"


def test_what_is_exposed_in_every_step_is_nobodys_loss() -> None:
    """However many of these steps are told of at once."""
    usual = PlannedStep(4, 3, 12, 0.0, exposed_s=0.003, drafting_s=0.002)
    for num_steps in (1, 50):
        exposure = Exposure()
        for _ in range(100 // num_steps):
            exposure.observe(usual, num_steps)
        assert exposure.caught_up_s(usual) == pytest.approx(0, abs=1e-6)
        assert exposure.lost_s(usual, 0.01) == pytest.approx(0, abs=1e-6)
        without = PlannedStep(4, 0, 0, 0.0, exposed_s=0.004)
        assert exposure.caught_up_s(without) == 0
        assert exposure.lost_s(without, 0.01) == 0.004


def test_what_a_network_catches_up_with_is_lost_whoever_waits() -> None:
    exposure = Exposure()
    usual = PlannedStep(4, 3, 12, 0.0, exposed_s=0.0005, drafting_s=0.0002)
    exposure.observe(usual, num_steps=200)
    # 1.2 ms for drafts, of which 0.2 are as ever; 0.9 for the prompt, of which 0.3 are.
    step = mixed(exposed_s=0.0021, drafting_s=0.0012)
    assert exposure.lost_s(step, hidden_s=0.01) == pytest.approx(0.001 + 0.0006, rel=1e-3)
    assert exposure.lost_s(step, hidden_s=0.0) == pytest.approx(0.001, rel=1e-3)


class CatchingUp(TimedRunner):
    """A network has to see a prompt before it drafts."""

    def __init__(self, costs: StepCosts, rate: float, prefill_s: float) -> None:
        super().__init__(costs, rate, draft_s=0.0001)
        self._prefill_s = prefill_s
        self._seen: defaultdict[int, bool] = defaultdict(bool)

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        if not all(self._seen[row] for row, _ in asked):
            self.now += CATCH_UP_S
        self._seen.update((row, True) for row, _ in asked)
        return super().draft(asked, num_tokens, wait=wait)

    def forward(self, plan: StepPlan) -> None:
        if plan.admissions:
            self.now += self._prefill_s
        self._seen.update((admission.row, False) for admission in plan.admissions)
        super().forward(plan)


def serve(
    batch: int,
    rate: float,
    speed: float,
    mean_tokens: int,
    config: SpeculativeConfig | None,
    *,
    prefill_s: float = PREFILL_S,
    together: bool = False,
) -> float:
    """Tokens a second where a request comes whenever one goes, without the first third of them.
    together: as many come when all are gone."""
    table = [[seconds / speed for seconds in row] for row in H200.taken_s]
    runner = CatchingUp(padded(StepCosts(BATCHES, LENGTHS, table)), rate, prefill_s)
    core = EngineCore(
        EngineConfig(
            model="toy",
            max_num_seqs=batch,
            enable_prefix_caching=False,
            speculative_config=config,
        ),
        runner,
        max_model_len=100_000,
        overlap=True,
        proposer=None if config is None else NetworkProposer(runner),
        clock=runner.clock,
    )
    rng, num_come, num_gone, num_tokens = random.Random(3), 0, 0, 0
    began: tuple[float, int] | None = None
    while num_gone < 30 * batch:
        num_running = num_come - num_gone
        for _ in range(0 if together and num_running else batch - num_running):
            length = max(2, int(rng.expovariate(1 / mean_tokens)))
            params = SamplingParams(max_tokens=length, ignore_eos=True)
            core.add_request(
                GenerateRequest(request_id=str(num_come), prompt_token_ids=[2] * 30, params=params)
            )
            num_come += 1
        for output in core.step():
            num_tokens += len(output.new_token_ids)
            num_gone += output.finish_reason is not None
        runner.now += OUTSIDE_S
        if began is None and num_gone >= 10 * batch:
            began = runner.now, num_tokens
    assert began is not None
    return (num_tokens - began[1]) / (runner.now - began[0])


@pytest.mark.parametrize(
    ("batch", "rate", "speed", "mean_tokens"),
    [(8, 0.5, 20, 24), (32, 0.5, 20, 24), (32, 0.8, 1, 24), (32, 0.5, 1, 24), (32, 0.5, 20, 100)],
)
def test_short_answers_are_never_slower_with_drafts(
    batch: int, rate: float, speed: float, mean_tokens: int
) -> None:
    """Always three drafts, some of these lose up to a fifth."""
    drafts = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    plain = serve(batch, rate, speed, mean_tokens, None)
    assert serve(batch, rate, speed, mean_tokens, drafts) > 0.98 * plain


def test_drafts_that_pay_in_spite_of_newcomers_are_made() -> None:
    drafts = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    assert serve(8, 0.8, 20, 100, drafts) > 1.3 * serve(8, 0.8, 20, 100, None)


@pytest.mark.parametrize("batch", [1, 8])
def test_prompts_that_have_nothing_to_hide_behind_are_not_held_against_drafts(batch: int) -> None:
    """As where one request follows another: their prompts take as long without drafts."""

    def served(config: SpeculativeConfig | None) -> float:
        return serve(batch, 0.8, 20, 24, config, prefill_s=0.02, together=True)

    drafts = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    assert served(drafts) > 1.15 * served(None)
