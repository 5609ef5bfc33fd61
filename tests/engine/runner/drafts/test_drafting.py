"""Drafting by itself: a network that says what it was given, over tables and keys that are real."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.attention.torch_ref import TorchAttention
from engine.layers.attention import StepContext
from engine.models.base import ModelConfig
from engine.models.registry import read_config
from engine.runner.drafts.drafting import ChainDrafting, ParallelDrafting
from engine.runner.drafts.features import FeatureCache
from engine.runner.memory import PagedCache
from engine.runner.rows import RowTable
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, StepPlan
from engine.spec.draft_network import ChainNetwork, ParallelNetwork
from tests.engine.runner.tiny_llama import save_tiny_llama

CPU, F32 = torch.device("cpu"), torch.float32
BLOCK, WIDTH, ROWS, VOCAB = 4, 40, 3, 100
Seen = list[tuple[list[int], list[int], list[float]]]
"""Of each pass: token ids, positions, and the first number of each feature."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_llama(folder, vocab_size=VOCAB)
    config = read_config(folder)
    assert isinstance(config, ModelConfig)
    return config


def one_hot(token_ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(token_ids % VOCAB, VOCAB).float()


class Counting(ChainNetwork):
    """Drafts the number after the last one; feeds back a hundred more than the token."""

    feature_size = 2

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.seen: Seen = []

    def hidden_states(
        self, token_ids: torch.Tensor, features: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        self.seen.append((token_ids.tolist(), step.positions.tolist(), features[:, 0].tolist()))
        return torch.stack((100.0 + token_ids, 0.0 * token_ids, token_ids), 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return one_hot(hidden[:, 2].long() + 1)


class Parallel(ParallelNetwork):
    """Head i says the feature and i."""

    feature_size = 2
    num_heads = 3

    def all_logits(self, features: torch.Tensor) -> list[torch.Tensor]:
        return [one_hot(features[:, 0].long() + index) for index in range(self.num_heads)]


class Bench:
    """A target that has computed everything but the last known token of each row."""

    def __init__(self, network: ChainNetwork | ParallelNetwork, max_num_tokens: int = 100) -> None:
        self.table = RowTable(ROWS, WIDTH, BLOCK, CPU)
        self.sampler = Sampler(ROWS, VOCAB, frozenset(), seed=0, device=CPU)
        num_blocks = ROWS * WIDTH // BLOCK
        self.features = FeatureCache(num_blocks * BLOCK, BLOCK, network, dtype=F32, device=CPU)
        self.drafting: ChainDrafting | ParallelDrafting
        if isinstance(network, ParallelNetwork):
            self.drafting = ParallelDrafting(
                network, self.features, self.table, self.sampler, BLOCK
            )
        else:
            self.drafting = ChainDrafting(
                network,
                self.features,
                TorchAttention(CPU, F32),
                PagedCache(network.config, num_blocks, BLOCK, dtype=F32, device=CPU),
                self.table,
                self.sampler,
                BLOCK,
                max_num_tokens=max_num_tokens,
                num_lookahead_tokens=3,
            )

    def admit(self, row: int, token_ids: list[int], num_blocks: int) -> None:
        """With features that are the tokens' own numbers."""
        params, known = SamplingParams(temperature=0.0), len(token_ids)
        first = row * WIDTH // BLOCK
        admission = Admission(
            row, str(row), token_ids, known, [range(first, first + num_blocks)], params
        )
        self.table.admit(admission)
        self.sampler.admit(row, str(row), params, known)
        chunk = Chunk(row, str(row), 0, known - 1, True)
        self.drafting.apply(StepPlan(0, admissions=[admission], chunks=[chunk]))
        self.compute(row, 0, token_ids[:-1])

    def compute(self, row: int, start: int, token_ids: list[int]) -> None:
        slots = row * WIDTH + start + torch.arange(len(token_ids))
        self.features.keep(slots, torch.tensor(token_ids, dtype=F32)[:, None].repeat(1, 2))

    def draft(self, asked: list[tuple[int, int]], num_tokens: int) -> list[list[int]]:
        drafts = self.drafting.draft(asked, num_tokens)
        return drafts.tolist() if isinstance(drafts, torch.Tensor) else drafts


def test_a_chain_reads_the_feature_before_each_token_and_then_its_own(config: ModelConfig) -> None:
    network = Counting(config)
    bench = Bench(network)
    bench.admit(1, [7, 8, 20], num_blocks=3)
    assert bench.draft([(1, 3)], 3) == [[21, 22, 23]]
    assert network.seen == [
        ([7, 8, 20], [0, 1, 2], [0.0, 7.0, 8.0]),
        ([21], [3], [120.0]),
        ([22], [4], [121.0]),
    ]
    assert bench.table.tokens[1, :6].tolist() == [7, 8, 20, 21, 22, 23]


def test_later_drafts_begin_where_the_last_ended(config: ModelConfig) -> None:
    """What is fed back is a draft, so keys behind the known tokens are made again."""
    network = Counting(config)
    bench = Bench(network)
    bench.admit(0, [7, 8, 20], num_blocks=4)
    bench.draft([(0, 3)], 2)
    network.seen.clear()
    # The target agreed with the first draft, and said something else then.
    bench.table.tokens[0, 3:5] = torch.tensor([21, 50])
    bench.drafting.apply(StepPlan(1, chunks=[Chunk(0, "0", 2, 3, True, False, (21, 22))]))
    bench.compute(0, 2, [20, 21])
    assert bench.draft([(0, 5)], 2) == [[51, 52]]
    assert network.seen == [([21, 50], [3, 4], [20.0, 21.0]), ([51], [5], [150.0])]


def test_where_no_features_were_kept_there_are_zeros(config: ModelConfig) -> None:
    """Not those of whoever had the slots before."""
    network = Counting(config)
    bench = Bench(network)
    bench.admit(0, [7, 8, 20], num_blocks=4)
    bench.compute(0, 2, [90, 91])
    bench.table.tokens[0, 3:6] = torch.tensor([21, 22, 23])
    for computed, keeps in ((2, True), (3, False), (4, True)):
        chunk = Chunk(0, "0", computed, 1, True)
        bench.drafting.apply(StepPlan(1, chunks=[chunk], keeps_features=keeps))
        if keeps:
            bench.compute(0, computed, [20 + computed - 2])
    assert bench.draft([(0, 6)], 1) == [[24]]
    assert network.seen[0][2] == [0.0, 7.0, 8.0, 20.0, 0.0, 22.0]


@pytest.mark.parametrize("budget", [1, 3, 4, 100])
def test_long_prompts_are_caught_up_with_in_pieces(config: ModelConfig, budget: int) -> None:
    network = Counting(config)
    bench = Bench(network, budget)
    bench.admit(0, [1, 2, 3, 4, 5, 6], num_blocks=4)
    bench.admit(2, [30, 31], num_blocks=4)
    assert bench.draft([(0, 6), (2, 2)], 2) == [[7, 8], [32, 33]]
    *pieces, last = network.seen
    assert max(len(tokens) for tokens, _, _ in pieces) <= max(budget, 1)
    caught_up = sorted(fields for piece in pieces for fields in zip(*piece, strict=True))
    assert caught_up == [
        *((place + 1, place, float(place)) for place in range(6)),
        (30, 0, 0.0),
        (31, 1, 30.0),
    ]
    assert last[0] == [7, 32]


def test_rows_draft_as_far_as_they_have_slots(config: ModelConfig) -> None:
    network = Counting(config)
    bench = Bench(network)
    bench.admit(0, [10, 11, 12, 13], num_blocks=1)
    bench.admit(1, [20, 21, 22], num_blocks=1)
    bench.admit(2, [30, 31, 32], num_blocks=2)
    bench.table.tokens[0, 4] = 14
    # The first has none for its last token, the second one for a single token of its own.
    asked = [(0, 5), (1, 3), (2, 3)]
    assert bench.draft(asked, 4) == [[], [23, 24], [33, 34, 35, 36]]
    assert bench.draft(asked, 0) == [[], [], []]
    assert bench.draft([(0, 5)], 4) == [[]]


def test_nothing_is_written_behind_the_table(config: ModelConfig) -> None:
    bench = Bench(Counting(config))
    known = WIDTH - 2
    bench.admit(0, list(range(known)), num_blocks=WIDTH // BLOCK)
    before = bench.table.tokens[1:].clone()
    assert bench.draft([(0, known)], 5) == [[known, known + 1]]
    assert torch.equal(bench.table.tokens[1:], before)


def test_heads_draft_at_once_from_the_last_feature(config: ModelConfig) -> None:
    bench = Bench(Parallel())
    bench.admit(0, [7, 8, 20], num_blocks=1)
    bench.admit(2, [40, 41], num_blocks=1)
    assert bench.draft([(0, 3), (2, 2)], 2) == [[8, 9], [40, 41]]
    assert bench.table.tokens[0, :5].tolist() == [7, 8, 20, 8, 9]


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_rehearsal_leaves_no_keys(config: ModelConfig, num_tokens: int) -> None:
    """It is timed before the first plan."""
    network = Counting(config)
    bench = Bench(network)
    assert isinstance(bench.drafting, ChainDrafting)
    bench.drafting.rehearse(ROWS, num_tokens)
    assert [len(tokens) for tokens, _, _ in network.seen] == [ROWS] * num_tokens
    network.seen.clear()
    bench.admit(0, [7, 8, 20], num_blocks=3)
    assert bench.draft([(0, 3)], 1) == [[21]]
    assert len(network.seen[0][0]) == 3
    heads = Bench(Parallel())
    heads.drafting.rehearse(ROWS, num_tokens)


def test_to_warm_up_is_to_catch_up_with_a_prompt_that_nobody_has(config: ModelConfig) -> None:
    network = Counting(config)
    bench = Bench(network)
    bench.drafting.warm_up()
    assert [positions for _, positions, _ in network.seen] == [[*range(12)]], "on a CPU, once"
    network.seen.clear()
    bench.admit(0, [7, 8, 20], num_blocks=3)
    assert bench.draft([(0, 3)], 1) == [[21]]
    assert len(network.seen[0][0]) == 3
    Bench(Parallel()).drafting.warm_up()


def test_drafts_of_rows_that_sample_are_drawn_as_the_target_draws(config: ModelConfig) -> None:
    """By the noise of seed and position, so that the two agree as often as they can."""

    class Undecided(Counting):
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(hidden), VOCAB)

    bench = Bench(Undecided(config))
    bench.admit(0, [7, 8, 20], num_blocks=4)
    params = SamplingParams(temperature=1.0, seed=5)
    bench.sampler.release(0)
    bench.sampler.admit(0, "0", params, 3)
    (drafts,) = bench.draft([(0, 3)], 3)
    positions = np.arange(3, 6)
    drawn = bench.sampler.sample(
        bench.table.tokens, torch.zeros(3, VOCAB), np.zeros(3, np.int64), positions, None
    )
    assert drafts == drawn.tolist()
    assert len(set(drafts)) > 1
